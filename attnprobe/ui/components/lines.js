/* Lines from query tokens (left) to key tokens (right). Hover a token to see its lines alone, click
   to keep it. Token text is only ever drawn with fillText or set as textContent.

   A long text scrolls over a canvas no higher than what is seen of it: 1,024 tokens on one canvas
   would be 15,000 pixels high, and every redrawing would paint them all. */

const SIZE = 12, SIDE = 130, HEAD = 24, FOOT = 6;

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".lines");
  const sheet = root.querySelector(".sheet"), canvas = root.querySelector("canvas");
  const tip = root.querySelector(".tip");
  root.classList.toggle("dark", data.meta.dark);
  const column = (name) => data.lines.getChild(name).toArray();
  const view = {
    ...data.meta,
    query: column("query"), key: column("key"), value: column("value"), ink: column("ink"),
    hover: null, step: data.meta.tokens.length > 60 ? 15 : 20,
  };
  sheet.style.height = `${HEAD + view.tokens.length * view.step + FOOT}px`;
  const draw = () => paint(canvas, view, root);

  canvas.onpointermove = (event) => {
    view.hover = at(canvas, view, root, event);
    draw();
    describe(tip, root, view, event);
  };
  canvas.onpointerleave = () => { view.hover = null; tip.hidden = true; draw(); };
  canvas.onclick = () => {
    if (view.hover?.side === "query") setTriggerValue("pick", { query: view.hover.token });
  };
  root.onscroll = () => { view.hover = null; tip.hidden = true; draw(); };
  for (const part of [root, canvas]) part.setAttribute("aria-label", view.label);
  show(root, view);
  const observer = new ResizeObserver(draw); // which also paints once now
  observer.observe(root);
  return () => observer.disconnect();
}

/* A row that was pinned elsewhere comes into sight; the person's own scrolling stays. */
function show(root, view) {
  if (view.row === null || root.dataset.row === `${view.row}`) return;
  root.dataset.row = `${view.row}`;
  const y = HEAD + view.row * view.step, seen = root.scrollTop;
  if (y < seen + HEAD || y + view.step > seen + root.clientHeight)
    root.scrollTop = y - root.clientHeight / 2;
}

function at(canvas, view, root, event) {
  const box = canvas.getBoundingClientRect(), y = event.clientY - box.top;
  const token = Math.floor((y - HEAD + root.scrollTop) / view.step);
  if (y < HEAD || token < 0 || token >= view.tokens.length) return null;
  const x = event.clientX - box.left;
  return { token, side: x < box.width / 2 ? "query" : "key" };
}

function paint(canvas, view, root) {
  const style = getComputedStyle(root), ratio = window.devicePixelRatio || 1;
  const width = root.clientWidth, height = root.clientHeight;
  if (!width) return;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const side = Math.min(SIDE, width / 4);
  titles(pen, side, width - side, style);
  pen.beginPath();
  pen.rect(0, HEAD, width, height - HEAD);
  pen.clip();
  view.y = (token) => HEAD + (token + 0.5) * view.step - root.scrollTop;
  view.height = height;
  strokes(pen, view, side, width - side, style);
  words(pen, view, side, width - side, style);
}

function titles(pen, left, right, style) {
  pen.textBaseline = "middle";
  pen.fillStyle = style.getPropertyValue("--soft");
  pen.font = `600 11px ${style.fontFamily}`;
  pen.textAlign = "right";
  pen.fillText("query", left - 8, 10);
  pen.textAlign = "left";
  pen.fillText("key", right + 8, 10);
}

function shown(view, i) {
  const focus = view.hover ?? (view.row === null ? null : { side: "query", token: view.row });
  return !focus || view[focus.side][i] === focus.token;
}

function strokes(pen, view, left, right, style) {
  pen.strokeStyle = style.getPropertyValue("--line");
  pen.lineCap = "round";
  const middle = (left + right) / 2;
  for (let i = 0; i < view.query.length; i++) {
    const from = view.y(view.query[i]), to = view.y(view.key[i]);
    if (Math.max(from, to) < HEAD || Math.min(from, to) > view.height) continue;
    pen.globalAlpha = shown(view, i) ? 0.12 + 0.88 * view.ink[i] : 0.07;
    pen.lineWidth = 0.6 + 4.4 * view.ink[i];
    pen.beginPath();
    pen.moveTo(left, from);
    pen.bezierCurveTo(middle, from, middle, to, right, to);
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

function words(pen, view, left, right, style) {
  pen.fillStyle = style.getPropertyValue("--ink");
  view.tokens.forEach((word, token) => {
    const y = view.y(token);
    if (y < HEAD - view.step || y > view.height + view.step) return;
    for (const [side, x, align] of [["query", left - 8, "right"], ["key", right + 8, "left"]]) {
      const strong = (view.hover?.side === side && view.hover.token === token)
        || (side === "query" && view.row === token);
      pen.font = `${strong ? "700 " : ""}${Math.min(SIZE, view.step - 3)}px ${style.fontFamily}`;
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
  const x = event.clientX - box.left + 16, y = event.clientY - box.top;
  const below = y + 16 + tip.offsetHeight < root.clientHeight;
  const top = below ? y + 16 : Math.max(0, y - 8 - tip.offsetHeight);
  tip.style.left = `${Math.max(0, Math.min(x, root.clientWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${root.scrollTop + top}px`;
}
