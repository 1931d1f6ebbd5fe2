/* Queries x keys on a canvas: hover at any size without asking the server, click to pin a row,
   drag to zoom. Token text is only ever drawn (fillText) or set as textContent. */

const LABEL = 11, GAP = 8, BAR = 10, MOST_CELL = 40, MOST_SIDE = 880, MOST_STRIP = 240;

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".map");
  const canvas = root.querySelector("canvas");
  const tip = root.querySelector(".tip");
  const view = {
    ...data.meta,
    values: data.cells.getChild("value").toArray(),
    colours: data.cells.getChild("colour").toArray(),
    hover: null, drag: null,
  };
  view.image = picture(view);

  const draw = () => paint(canvas, view, root);
  const at = (event) => cell(canvas, view, event);

  canvas.onpointermove = (event) => {
    view.hover = at(event);
    if (view.drag) view.drag.to = at(event, true) || view.drag.to;
    draw();
    describe(tip, root, view, event);
  };
  canvas.onpointerleave = () => { view.hover = null; tip.hidden = true; draw(); };
  canvas.onpointerdown = (event) => {
    const here = at(event);
    view.drag = here ? { from: here, to: here } : null;
    if (here) canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointerup = () => {
    const drag = view.drag;
    view.drag = null;
    if (drag) finish(drag, view, setTriggerValue);
    draw();
  };
  canvas.onkeydown = (event) => keys(event, view, draw, setTriggerValue, tip, root);
  canvas.setAttribute("aria-label", view.label);

  const observer = new ResizeObserver(draw); // which also paints once now
  observer.observe(root);
  return () => observer.disconnect();
}

function picture({ rows, columns, colours }) {
  const image = new OffscreenCanvas(columns, rows);
  const pixels = new ImageData(new Uint8ClampedArray(colours.slice().buffer), columns, rows);
  image.getContext("2d").putImageData(pixels, 0, 0);
  return image;
}

/* Where everything is, in CSS pixels, for the width there is. */
function layout(view, width, pen) {
  const wide = (words) => Math.min(104, Math.max(...words.map((w) => pen.measureText(w).width), 8));
  const left = wide(view.query) + GAP + 16;
  const share = (width - left) * 0.15;
  const least = share > 70 ? Math.min(92, share) : 44;
  const room = Math.min(MOST_SIDE, width - left - view.strips.length * (least + GAP) - GAP);
  const step = Math.max(1, Math.min(MOST_CELL, Math.floor(room / Math.max(view.columns, view.rows))));
  const beside = (width - left - step * view.columns - GAP * 2) / view.strips.length - GAP;
  const strip = Math.max(least, Math.min(MOST_STRIP, beside));
  const upright = step < 16;
  const top = 18 + (upright ? wide(view.key) : wide(view.key) * 0.77 + 12) + GAP;
  return { left, top, step, upright, strip, w: step * view.columns, h: step * view.rows };
}

function cell(canvas, view, event, clamp = false) {
  const box = canvas.getBoundingClientRect(), p = view.place;
  if (!p) return null;
  let column = Math.floor((event.clientX - box.left - p.left) / p.step);
  let row = Math.floor((event.clientY - box.top - p.top) / p.step);
  if (clamp) {
    column = Math.max(0, Math.min(view.columns - 1, column));
    row = Math.max(0, Math.min(view.rows - 1, row));
  }
  const inside = row >= 0 && row < view.rows && column >= 0 && column < view.columns;
  return inside ? { row, column } : null;
}

function paint(canvas, view, root) {
  const style = getComputedStyle(root), ratio = window.devicePixelRatio || 1;
  const ink = style.getPropertyValue("--ink"), soft = style.getPropertyValue("--soft");
  const width = root.clientWidth;
  if (!width) return;
  const pen = canvas.getContext("2d");
  const font = style.fontFamily;
  pen.font = `${LABEL}px ${font}`;
  const p = (view.place = layout(view, width, pen));
  const height = p.top + p.h + 62;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = `${LABEL}px ${font}`;
  hatching(pen, view, p, soft);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(view.image, p.left, p.top, p.w, p.h);
  axes(pen, view, p, ink, soft, font);
  strips(pen, view, p, ink, soft, font, style);
  marks(pen, view, p);
  bar(pen, view, p, ink, soft, font);
}

function hatching(pen, view, p, soft) {
  if (!view.masked) return;
  pen.save();
  pen.beginPath();
  pen.rect(p.left, p.top, p.w, p.h);
  pen.clip();
  pen.strokeStyle = soft;
  pen.globalAlpha = 0.45;
  for (let x = p.left - p.h; x < p.left + p.w; x += 7) {
    pen.beginPath();
    pen.moveTo(x, p.top + p.h);
    pen.lineTo(x + p.h, p.top);
    pen.stroke();
  }
  pen.restore();
}

function stride(step) {
  const need = 12 / step;
  return [1, 2, 5, 10, 20, 50, 100, 200].find((n) => n >= need) || 500;
}

function clip(pen, word, most) {
  if (pen.measureText(word).width <= most) return word;
  let cut = [...word];
  while (cut.length > 1 && pen.measureText(cut.join("") + "…").width > most) cut.pop();
  return cut.join("") + "…";
}

function axes(pen, view, p, ink, soft, font) {
  const every = stride(p.step), hover = view.hover;
  pen.textBaseline = "middle";
  const apart = (i, j) => i === j || Math.abs(i - j) * p.step >= LABEL;
  const chosen = [hover ? hover.row : null, view.row].filter((row) => row !== null);
  view.query.forEach((word, i) => {
    const strong = chosen.includes(i);
    if (!strong && (i % every || !chosen.every((row) => apart(i, row)))) return;
    pen.fillStyle = ink;
    pen.font = `${strong ? "700 " : ""}${LABEL}px ${font}`;
    pen.textAlign = "right";
    pen.fillText(clip(pen, word, 104), p.left - GAP, p.top + (i + 0.5) * p.step);
  });
  view.key.forEach((word, i) => {
    const strong = hover && hover.column === i;
    if (!strong && (i % every || (hover && !apart(i, hover.column)))) return;
    pen.save();
    pen.fillStyle = ink;
    pen.font = `${strong ? "700 " : ""}${LABEL}px ${font}`;
    pen.textAlign = "left";
    pen.translate(p.left + (i + 0.5) * p.step, p.top - GAP / 2 - 2);
    pen.rotate(p.upright ? -Math.PI / 2 : -0.87);
    pen.fillText(clip(pen, word, 104), 0, 0);
    pen.restore();
  });
  pen.font = `600 ${LABEL}px ${font}`;
  pen.fillStyle = soft;
  pen.textAlign = "left";
  pen.fillText("key →", p.left, 8);
  pen.save();
  pen.translate(7, p.top);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "right";
  pen.fillText("← query", 0, 0);
  pen.restore();
}

function strips(pen, view, p, ink, soft, font, style) {
  view.strips.forEach((strip, s) => {
    const x = p.left + p.w + GAP * 2 + s * (p.strip + GAP);
    const room = p.strip - (p.strip > 70 ? 34 : 4);
    pen.fillStyle = soft;
    pen.font = `600 ${LABEL}px ${font}`;
    pen.textAlign = "left";
    pen.textBaseline = "bottom";
    const title = p.strip > 70 ? [strip.title] : strip.title.split(" ");
    title.forEach((line, i) => pen.fillText(line, x, p.top - GAP - 12 * (title.length - 1 - i)));
    pen.textBaseline = "middle";
    pen.font = `${Math.min(LABEL, Math.max(8, p.step - 2))}px ${font}`;
    strip.values.forEach((value, i) => {
      if (value === null) return;
      const y = p.top + i * p.step, thick = Math.max(1, p.step - Math.min(4, p.step * 0.3));
      pen.fillStyle = style.getPropertyValue(`--strip-${s}`);
      pen.fillRect(x, y + (p.step - thick) / 2, Math.max(1, (room * value) / strip.most), thick);
      if (p.step < 10 || p.strip <= 70) return;
      pen.fillStyle = ink;
      pen.fillText(number(value), x + (room * value) / strip.most + 4, y + p.step / 2 + 0.5);
    });
  });
}

function marks(pen, view, p) {
  const box = (x, y, w, h) => {
    for (const [stroke, thick] of [["#fff", 4], ["#12171D", 1.8]]) {
      pen.strokeStyle = stroke;
      pen.lineWidth = thick;
      pen.strokeRect(x, y, w, h);
    }
  };
  if (view.row !== null) box(p.left, p.top + view.row * p.step, p.w, Math.max(p.step, 2));
  if (view.drag && view.zoomable && moved(view.drag)) {
    const { r0, r1, c0, c1 } = span(view.drag);
    const size = [(c1 - c0 + 1) * p.step, (r1 - r0 + 1) * p.step];
    box(p.left + c0 * p.step, p.top + r0 * p.step, ...size);
  } else if (view.hover) {
    const { row, column } = view.hover;
    box(p.left + column * p.step, p.top + row * p.step, Math.max(p.step, 3), Math.max(p.step, 3));
  }
}

function bar(pen, view, p, ink, soft, font) {
  const y = p.top + p.h + 28, w = Math.max(160, Math.min(320, p.w)), x = p.left;
  const ramp = pen.createLinearGradient(x, 0, x + w, 0);
  view.ramp.forEach((colour, i) => ramp.addColorStop(i / (view.ramp.length - 1), colour));
  pen.fillStyle = ramp;
  pen.fillRect(x, y, w, BAR);
  pen.fillStyle = soft;
  pen.textBaseline = "bottom";
  pen.textAlign = "left";
  pen.font = `600 ${LABEL}px ${font}`;
  pen.fillText(view.title, x, y - 4);
  pen.fillStyle = ink;
  pen.textBaseline = "top";
  pen.font = `${LABEL}px ${font}`;
  view.ticks.forEach((text, i) => {
    pen.textAlign = ["left", "center", "right"][i];
    pen.fillText(text, x + (w * i) / 2, y + BAR + 4);
  });
  if (!view.masked) return;
  pen.textAlign = "left";
  pen.fillStyle = soft;
  pen.fillText("hatched: not visible to the query", x + w + 24, y - 1);
}

function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size < 1e-3 || size >= 1e5 ? value.toExponential(1) : value.toPrecision(3);
  return text.replace("-", "−");
}

function describe(tip, root, view, event) {
  const hover = view.hover;
  tip.hidden = !hover;
  if (!hover) return;
  const value = view.values[hover.row * view.columns + hover.column];
  const exact = Number.isNaN(value) ? "not visible to this query" : `${view.name} ${exactly(value)}`;
  const lines = tip.querySelectorAll("span");
  lines[0].textContent = view.queryTip[hover.row];
  lines[1].textContent = view.keyTip[hover.column];
  lines[2].textContent = (view.pooled ? "largest " : "") + exact;
  const box = root.getBoundingClientRect();
  const x = event.clientX - box.left + 14, y = event.clientY - box.top + 16;
  tip.style.left = `${Math.max(0, Math.min(x, root.clientWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${y}px`;
}

function exactly(value) {
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(3) : value.toPrecision(4);
  return text.replace("-", "−");
}

function moved({ from, to }) {
  return Math.abs(from.row - to.row) + Math.abs(from.column - to.column) > 2;
}

function span({ from, to }) {
  const [r0, r1] = [from.row, to.row].sort((a, b) => a - b);
  const [c0, c1] = [from.column, to.column].sort((a, b) => a - b);
  return { r0, r1, c0, c1 };
}

function finish(drag, view, send) {
  if (view.zoomable && moved(drag)) {
    const { r0, r1, c0, c1 } = span(drag);
    const end = (starts, i, all) => (i + 1 < starts.length ? starts[i + 1] : all);
    send("zoom", {
      rows: [view.queryStart[r0], end(view.queryStart, r1, view.queryEnd)],
      columns: [view.keyStart[c0], end(view.keyStart, c1, view.keyEnd)],
    });
    return;
  }
  send("pick", { query: view.queryStart[drag.to.row], key: view.keyStart[drag.to.column] });
}

function keys(event, view, draw, send, tip, root) {
  const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const here = view.hover || { row: view.row ?? 0, column: 0 };
  if (event.key === "Enter") return finish({ from: here, to: here }, view, send);
  if (!move[event.key]) return;
  event.preventDefault();
  const [down, right] = move[event.key];
  view.hover = {
    row: Math.max(0, Math.min(view.rows - 1, here.row + down)),
    column: Math.max(0, Math.min(view.columns - 1, here.column + right)),
  };
  draw();
  const box = root.getBoundingClientRect(), p = view.place;
  describe(tip, root, view, {
    clientX: box.left + p.left + view.hover.column * p.step,
    clientY: box.top + p.top + view.hover.row * p.step,
  });
}
