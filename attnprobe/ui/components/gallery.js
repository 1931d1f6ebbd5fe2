/* A grid of small pictures, as many columns as fit. Click one to choose it. */

const TITLE = 18, GAP = 12, SMALLEST = 84, LARGEST = 170;

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".gallery");
  const canvas = root.querySelector("canvas");
  const view = { ...data.meta, hover: null, images: pictures(data) };
  const draw = () => paint(canvas, view, root);
  canvas.onpointermove = (event) => {
    view.hover = at(canvas, view, event);
    canvas.style.cursor = view.hover === null ? "default" : "pointer";
    draw();
  };
  canvas.onpointerleave = () => { view.hover = null; draw(); };
  canvas.onclick = (event) => {
    const i = at(canvas, view, event);
    if (i !== null) setTriggerValue("pick", i);
  };
  canvas.setAttribute("aria-label", view.label);
  const observer = new ResizeObserver(draw); // which also paints once now
  observer.observe(root);
  return () => observer.disconnect();
}

function pictures(data) {
  const { side, titles } = data.meta, colours = data.pixels.getChild("colour").toArray();
  return titles.map((_, i) => {
    const part = colours.slice(i * side * side, (i + 1) * side * side);
    const image = new OffscreenCanvas(side, side);
    image.getContext("2d").putImageData(
      new ImageData(new Uint8ClampedArray(part.buffer), side, side), 0, 0);
    return image;
  });
}

/* Whole pixels for each cell where cells are large enough to be told apart; full rows first. */
function layout(view, width, titles) {
  const count = view.titles.length;
  let best = null;
  for (let columns = 1; columns <= count; columns++) {
    const room = Math.min(LARGEST, (width - GAP * (columns - 1)) / columns);
    if ((room < SMALLEST || (width - titles) / (columns - 1) < titles + GAP / 2) && columns > 1) break;
    const rows = Math.ceil(count / columns), filled = count / (rows * columns);
    const whole = Math.floor(room / view.side);
    const size = whole >= 2 ? view.side * whole : Math.floor(room);
    const score = filled ** 2 * columns;
    if (!best || score >= best.score) best = { columns, rows, size, score };
  }
  return best;
}

function place(view, i) {
  const { columns, size, pitch } = view.grid;
  return { x: (i % columns) * pitch, y: Math.floor(i / columns) * (size + TITLE + GAP) };
}

function at(canvas, view, event) {
  const box = canvas.getBoundingClientRect();
  for (let i = 0; i < view.titles.length; i++) {
    const { x, y } = place(view, i), size = view.grid.size;
    const dx = event.clientX - box.left - x, dy = event.clientY - box.top - y;
    if (dx >= 0 && dx <= size && dy >= 0 && dy <= size + TITLE) return i;
  }
  return null;
}

function paint(canvas, view, root) {
  const width = root.clientWidth, ratio = window.devicePixelRatio || 1;
  if (!width) return;
  const style = getComputedStyle(root);
  const pen = canvas.getContext("2d");
  pen.font = `700 11px ${style.fontFamily}`;
  const titles = Math.max(...view.titles.map((title) => pen.measureText(title).width));
  const grid = (view.grid = layout(view, width, Math.ceil(titles)));
  const wide = Math.max(grid.size, Math.ceil(titles));
  grid.pitch = grid.columns > 1
    ? Math.min(wide + 2 * GAP, (width - wide) / (grid.columns - 1)) : 0;
  const height = grid.rows * (grid.size + TITLE + GAP) + 44;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.imageSmoothingEnabled = grid.size % view.side !== 0;
  view.images.forEach((image, i) => {
    const { x, y } = place(view, i), strong = i === view.chosen || i === view.hover;
    pen.font = `${strong ? "700 " : ""}11px ${style.fontFamily}`;
    pen.fillStyle = style.getPropertyValue("--ink");
    pen.textBaseline = "alphabetic";
    pen.textAlign = "left";
    pen.fillText(view.titles[i], x, y + TITLE - 6);
    pen.fillStyle = style.getPropertyValue("--unseen");
    pen.fillRect(x, y + TITLE, grid.size, grid.size);
    pen.drawImage(image, x, y + TITLE, grid.size, grid.size);
    if (i === view.chosen) frame(pen, x, y + TITLE, grid.size);
  });
  bar(pen, view, height - 34, style);
}

function frame(pen, x, y, size) {
  for (const [stroke, thick] of [["#fff", 4], ["#12171D", 1.8]]) {
    pen.strokeStyle = stroke;
    pen.lineWidth = thick;
    pen.strokeRect(x + 1, y + 1, size - 2, size - 2);
  }
}

function bar(pen, view, y, style) {
  const w = 160, ramp = pen.createLinearGradient(0, 0, w, 0);
  view.ramp.forEach((colour, i) => ramp.addColorStop(i / (view.ramp.length - 1), colour));
  pen.fillStyle = ramp;
  pen.fillRect(0, y, w, 8);
  pen.fillStyle = style.getPropertyValue("--ink");
  pen.font = `11px ${style.fontFamily}`;
  pen.textBaseline = "top";
  view.ticks.forEach((text, i) => {
    pen.textAlign = ["left", "center", "right"][i];
    pen.fillText(text, (w * i) / 2, y + 12);
  });
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillStyle = style.getPropertyValue("--soft");
  pen.fillText(view.title, w + 12, y + 4);
}
