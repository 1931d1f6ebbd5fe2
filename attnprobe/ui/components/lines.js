/* Lines from query tokens (left) to key tokens (right). Hover a token to see its lines alone, click
   to keep it. Token text is only ever drawn with fillText or set as textContent. */

const SIZE = 12, SIDE = 130;

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".lines");
  const canvas = root.querySelector("canvas");
  const tip = root.querySelector(".tip");
  root.classList.toggle("dark", data.meta.dark);
  const column = (name) => data.lines.getChild(name).toArray();
  const view = {
    ...data.meta,
    query: column("query"), key: column("key"), value: column("value"), ink: column("ink"),
    hover: null,
  };
  const draw = () => paint(canvas, view, root);

  canvas.onpointermove = (event) => {
    view.hover = at(canvas, view, event);
    draw();
    describe(tip, root, view, event);
  };
  canvas.onpointerleave = () => { view.hover = null; tip.hidden = true; draw(); };
  canvas.onclick = () => {
    if (view.hover?.side === "query") setTriggerValue("pick", { query: view.hover.token });
  };
  canvas.setAttribute("aria-label", view.label);
  const observer = new ResizeObserver(draw); // which also paints once now
  observer.observe(root);
  return () => observer.disconnect();
}

function at(canvas, view, event) {
  const box = canvas.getBoundingClientRect();
  const token = Math.floor((event.clientY - box.top - view.head) / view.step);
  if (token < 0 || token >= view.tokens.length) return null;
  const x = event.clientX - box.left;
  return { token, side: x < box.width / 2 ? "query" : "key" };
}

function paint(canvas, view, root) {
  const style = getComputedStyle(root), ratio = window.devicePixelRatio || 1;
  const width = root.clientWidth;
  if (!width) return;
  view.step = view.tokens.length > 60 ? 15 : 20;
  view.head = 24;
  const height = view.head + view.tokens.length * view.step + 6;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const side = Math.min(SIDE, width / 4);
  strokes(pen, view, side, width - side, style);
  words(pen, view, side, width - side, style);
}

function shown(view, i) {
  const focus = view.hover ?? (view.row === null ? null : { side: "query", token: view.row });
  return !focus || view[focus.side][i] === focus.token;
}

function strokes(pen, view, left, right, style) {
  pen.strokeStyle = style.getPropertyValue("--line");
  pen.lineCap = "round";
  const y = (token) => view.head + (token + 0.5) * view.step;
  for (let i = 0; i < view.query.length; i++) {
    pen.globalAlpha = shown(view, i) ? 0.12 + 0.88 * view.ink[i] : 0.07;
    pen.lineWidth = 0.6 + 4.4 * view.ink[i];
    const middle = (left + right) / 2;
    pen.beginPath();
    pen.moveTo(left, y(view.query[i]));
    pen.bezierCurveTo(middle, y(view.query[i]), middle, y(view.key[i]), right, y(view.key[i]));
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

function words(pen, view, left, right, style) {
  const ink = style.getPropertyValue("--ink"), soft = style.getPropertyValue("--soft");
  pen.textBaseline = "middle";
  pen.fillStyle = soft;
  pen.font = `600 11px ${style.fontFamily}`;
  pen.textAlign = "right";
  pen.fillText("query", left - 8, 10);
  pen.textAlign = "left";
  pen.fillText("key", right + 8, 10);
  view.tokens.forEach((word, token) => {
    const y = view.head + (token + 0.5) * view.step;
    for (const [side, x, align] of [["query", left - 8, "right"], ["key", right + 8, "left"]]) {
      const strong = (view.hover?.side === side && view.hover.token === token)
        || (side === "query" && view.row === token);
      pen.font = `${strong ? "700 " : ""}${Math.min(SIZE, view.step - 3)}px ${style.fontFamily}`;
      pen.fillStyle = ink;
      pen.textAlign = align;
      pen.fillText(clip(pen, word, left - 12), x, y);
    }
  });
}

function clip(pen, word, most) {
  if (pen.measureText(word).width <= most) return word;
  let cut = [...word];
  while (cut.length > 1 && pen.measureText(cut.join("") + "…").width > most) cut.pop();
  return cut.join("") + "…";
}

function describe(tip, root, view, event) {
  tip.hidden = !view.hover;
  if (!view.hover) return;
  const { side, token } = view.hover, other = side === "query" ? "key" : "query";
  const mine = [...view.query.keys()].filter((i) => view[side][i] === token);
  mine.sort((a, b) => view.value[b] - view.value[a]);
  const lines = mine.slice(0, 6).map((i) => {
    const at = view[other][i];
    return `${view.value[i].toPrecision(3)}  ${view.tokens[at]} (${at})`;
  });
  const head = `${view.tokens[token]} (${token}) ${side === "query" ? "looks at" : "is looked at by"}`;
  tip.textContent = [head, ...(lines.length ? lines : ["nothing above the threshold"])].join("\n");
  const box = root.getBoundingClientRect();
  const x = event.clientX - box.left + 16;
  tip.style.left = `${Math.max(0, Math.min(x, root.clientWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${event.clientY - box.top + 16}px`;
}
