// A Transformer drawn from its parts, wired in more than one way. Each box opens what it is: lessons and source.
function view(page, { drawings, parts }) {
  const names = Object.keys(parts);
  const part = page.choice("part", names.map((name) => parts[name].title));
  const groups = [];

  function boxOf({ x, y, width, height, text, name, fill }) {
    const frame = draw("rect", { x: x - width / 2, y: y - height / 2, width, height, rx: 5, fill });
    const group = draw("g", { role: "button", tabindex: "0", "aria-label": `${text}: show ${parts[name].title}`, style: "cursor: pointer" },
      frame, draw("text", { x, y: y + 4, "text-anchor": "middle", style: "font-size: 12px" }, text));
    const choose = () => { part.selectedIndex = names.indexOf(name); page.refresh(); };
    group.addEventListener("click", choose);
    group.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose();
    });
    groups.push({ name, frame, group });
    return group;
  }
  const wireOf = ({ points, color, width }) => {
    const [[a, b], [x, y]] = points.slice(-2);
    return draw("g", {}, draw("polyline", { points: points.map(String).join(" "), fill: "none", stroke: color, "stroke-width": width }),
      arrow(a, b, x, y, color, width));
  };
  page.add(make("style", {}, "figure { margin: 0 } pre { overflow: auto; max-height: 26em; font-size: 12px; background: #f6f6f6; padding: 8px }" +
    "figcaption { font-weight: bold } a { color: #0072B2 } g:focus-visible { outline: 3px solid #0072B2 }"),
    make("div", { style: "display: flex; flex-wrap: wrap; gap: 8px 24px; align-items: flex-end" }, ...drawings.map(({ name, rule, width, height, frames, wires, boxes, labels }) =>
      make("figure", {}, make("figcaption", {}, name), make("div", {}, rule),
        draw("svg", { viewBox: `0 0 ${width} ${height}`, width, role: "group", "aria-label": name },
          ...frames.map((frame) => draw("rect", { ...frame, rx: 8, fill: "#f7f7f7", stroke: "#bdbdbd" })),
          ...wires.map(wireOf), ...boxes.map(boxOf),
          ...labels.map(({ text, anchor, ...place }) => draw("text", { ...place, "text-anchor": anchor, style: "font-size: 12px" }, text)))))));
  const links = make("p"), source = make("pre", { tabindex: "0" });
  page.add(make("div", { style: "flex: 1 0 100%; min-width: 0" }, links,
    make("details", {}, make("summary", {}, "its source, from the library"), source)));

  // Links lead to notebooks; on a site built of them, to their pages.
  const ending = /\.html?$/.test(location.pathname) ? ".html" : ".ipynb";
  return () => {
    const name = names[part.selectedIndex], { title, what, lessons, code, parameters } = parts[name];
    for (const { name: own, frame, group } of groups) {
      frame.setAttribute("stroke", own === name ? "#000" : "none");
      frame.setAttribute("stroke-width", 2);
      group.setAttribute("aria-pressed", own === name);
    }
    links.replaceChildren("lessons: ", ...lessons.flatMap(([file, called], place) => [place ? ", " : "",
      make("a", { href: file + ending, target: "_blank", rel: "noopener" }, called)]));
    source.textContent = code;
    page.say(`${title}: ${what} ${parameters}`);
  };
}
