// What all views share. A view is a function `view(page, data)`: it puts controls and drawings on its page once, and
// returns a function that shows the state of the controls; that runs at the start, and whenever one of them moves.

const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]; // PALETTE, in Python
const GRAY = "#6b6b6b";
const BLUES = ["#f7fbff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b"];

// Numbers ------------------------------------------------------------------------------------------------------------

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
const dot = (one, other) => sum(one.map((each, place) => each * other[place]));
const range = (count) => Array.from({ length: count }, (_, place) => place);

// Shares of 1. Who may see nothing gets zeros, as in txlib's attention.
function softmax(scores) {
  const largest = Math.max(...scores);
  if (largest === -Infinity) return scores.map(() => 0);
  const powers = scores.map((score) => Math.exp(score - largest));
  const total = sum(powers);
  return powers.map((power) => power / total);
}

// Names told apart: "die", "die (2)".
const distinct = (names) => names.map((name, place) => {
  const before = names.slice(0, place).filter((each) => each === name).length;
  return before ? `${name} (${before + 1})` : name;
});

// A number to be read: with a true minus sign, and never a negative zero.
function fixed(number, digits = 2) {
  if (!Number.isFinite(number)) return number < 0 ? "−∞" : "∞";
  const text = Math.abs(number).toFixed(digits);
  return number < 0 && Number(text) !== 0 ? "−" + text : text;
}

// Elements -----------------------------------------------------------------------------------------------------------

// Children that are text become text, so that a token such as "<eos>" stays one.
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}
const make = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// The color of a share between 0 and 1, as matplotlib's "Blues", and a color of text that can be read on it.
function shade(share) {
  const place = Math.min(Math.max(share, 0), 1) * (BLUES.length - 1);
  const [low, high] = [Math.floor(place), Math.ceil(place)].map((each) =>
    [1, 3, 5].map((digit) => parseInt(BLUES[each].slice(digit, digit + 2), 16)));
  return `rgb(${low.map((each, part) => Math.round(each + (high[part] - each) * (place % 1))).join(",")})`;
}
const ink = (share) => (share > 0.72 ? "#fff" : "#000");

// An arrow in a drawing, with its point in (x2, y2).
function arrow(x1, y1, x2, y2, color, width = 2) {
  const length = Math.hypot(x2 - x1, y2 - y1) || 1;
  const [x, y] = [(x2 - x1) / length, (y2 - y1) / length];
  const [head, half] = [Math.min(4 * width + 2, length), 1.5 * width + 1];
  const [left, right] = [half, -half].map((side) => `${x2 - head * x - side * y},${y2 - head * y + side * x}`);
  return draw("g", { stroke: color, fill: color },
    draw("line", { x1, y1, x2: x2 - (head - 1) * x, y2: y2 - (head - 1) * y, "stroke-width": width }),
    draw("polygon", { points: `${x2},${y2} ${left} ${right}`, stroke: "none" }));
}

// The page of a view ---------------------------------------------------------------------------------------------------

const STYLE = `
:host { all: initial; color-scheme: light; display: block; max-width: 760px }
.page { background: #fff; color: #1a1a1a; font: 14px/1.4 system-ui, sans-serif; border: 1px solid #c8c8c8;
  border-radius: 6px; padding: 10px 12px; box-sizing: border-box }
.title { font-weight: bold; margin: 0 0 8px }
.controls { display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; margin-bottom: 8px }
.controls label { display: inline-flex; flex-wrap: wrap; gap: 2px 8px; align-items: center; min-height: 28px }
.stage { display: flex; flex-wrap: wrap; gap: 8px 28px; align-items: flex-start }
input[type=range] { width: 140px; accent-color: #0072B2; margin: 0 }
input[type=checkbox] { width: 18px; height: 18px; accent-color: #0072B2; margin: 0 }
select, button { font: inherit; min-height: 28px; max-width: 100% }
label span { display: inline-flex; align-items: center; white-space: nowrap }
output { min-width: 3em; margin-left: 8px; font-variant-numeric: tabular-nums }
:focus-visible { outline: 2px solid #0072B2; outline-offset: 2px }
svg { display: block; max-width: 100%; height: auto }
svg text { font: 13px system-ui, sans-serif }
.part { max-width: 100% }
.caption { margin: 0 0 3px; color: #4d4d4d; contain: inline-size }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: 2px 7px; text-align: right; font-weight: normal; white-space: nowrap }
thead th { color: #4d4d4d }
tbody th { text-align: left }
.matrix td { text-align: center; padding: 2px 4px; min-width: 1.4em }
.matrix thead th { vertical-align: bottom; text-align: center; padding: 2px }
.matrix thead span { writing-mode: vertical-rl; transform: rotate(180deg) }
code { font: 13px ui-monospace, monospace }
input[type=text], input[type=number] { font: inherit; width: 3.5em; min-height: 24px; box-sizing: border-box }
[role=status] { margin: 8px 0 0; min-height: 2.8em }
@media (pointer: coarse) { select, button, label { min-height: 40px; font-size: 16px } }
`;

class Page {
  constructor(title) {
    this.controls = make("div", { class: "controls" });
    this.stage = make("div", { class: "stage" });
    this.status = make("p", { role: "status" });
    this.sliders = [];
    this.body = make("div", { class: "page", role: "group", "aria-label": title },
      make("p", { class: "title", "aria-hidden": "true" }, title), this.controls, this.stage, this.status);
    // Keys belong to the control that has the focus: a notebook would move to its next cell, a site turn the page.
    this.body.addEventListener("keydown", (event) => event.stopPropagation());
    this.body.addEventListener("input", () => this.refresh());
  }

  add(...elements) { this.stage.append(...elements); }

  // What the controls now mean, in a sentence with its numbers. It is read aloud to whoever cannot see the drawing.
  say(text) { if (this.status.textContent !== text) this.status.textContent = text; }

  refresh() {
    this.update();
    for (const { input, output, show } of this.sliders) {
      output.textContent = show(input.valueAsNumber);
      input.setAttribute("aria-valuetext", output.textContent);
    }
  }

  // An <input type=range>; its number is `valueAsNumber`, and `show` makes a text of it.
  slider(name, { min, max, step = 1, value = min, show = String }) {
    const input = make("input", { type: "range", "aria-label": name, min, max, step, value });
    const output = make("output", { "aria-hidden": "true" });
    this.sliders.push({ input, output, show });
    this.controls.append(make("label", {}, name, make("span", {}, input, output)));
    return input;
  }

  // A <select>; the place of what is chosen is its `selectedIndex`.
  choice(name, options, chosen = 0) {
    const select = make("select", { "aria-label": name }, ...options.map((option, place) =>
      make("option", { selected: place === chosen }, option)));
    this.controls.append(make("label", {}, name, select));
    return select;
  }

  // A checkbox; see its `checked`.
  tick(name, checked = false) {
    const input = make("input", { type: "checkbox", checked });
    this.controls.append(make("label", {}, input, name));
    return input;
  }

  button(name, press) {
    const button = make("button", { type: "button" }, name);
    button.addEventListener("click", () => { press(); this.refresh(); });
    this.controls.append(button);
    return button;
  }

  // A table that can be scrolled on a phone. `fill` takes rows of cells, each row's name first; a cell is a text, or
  // { text, share } to be shaded by a share of 1. In a "matrix" the names of the columns stand upright.
  table(caption, columns, kind) {
    const body = make("tbody");
    const table = make("table", { class: kind, "aria-label": caption },
      make("thead", {}, make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, make("span", {}, name))))), body);
    this.add(make("div", { class: "part" }, make("p", { class: "caption", "aria-hidden": "true" }, caption),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table)));
    const cell = (each) => each.share === undefined ? make("td", {}, each)
      : make("td", { style: `background: ${shade(each.share)}; color: ${ink(each.share)}` }, each.text);
    table.fill = (rows) => body.replaceChildren(...rows.map(([name, ...cells]) =>
      make("tr", {}, make("th", { scope: "row" }, name), ...cells.map(cell))));
    return table;
  }

  // Calls moves(x, y), in the drawing's own units, while a pointer that was pressed on the element moves.
  drag(drawing, element, moves) {
    const move = (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
      moves(point.x, point.y);
      this.refresh();
    };
    element.style.cursor = "grab";
    element.style.touchAction = "none"; // a finger moves the element, not the page
    element.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      element.setPointerCapture(event.pointerId);
      move(event);
    });
    element.addEventListener("pointermove", (event) => {
      if (element.hasPointerCapture(event.pointerId)) move(event);
    });
  }
}

// Begin: each place on this page that waits for this view and still shows a picture gets it. The picture stays for
// whoever listens: its text says what there is to see.
function explore(id, title, view, data) {
  for (const place of document.querySelectorAll(`[data-explore="${id}"]:not([data-alive])`)) {
    const page = new Page(title);
    page.update = view(page, data);
    page.refresh();
    const host = make("div", { "data-lm-suppress-shortcuts": "true" }); // JupyterLab leaves our keys to us
    host.attachShadow({ mode: "open" }).append(make("style", {}, STYLE), page.body); // the site's styles stay outside
    place.dataset.alive = "";
    place.firstElementChild.style.cssText = "position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%)";
    place.style.position = "relative";
    place.append(host);
  }
}
