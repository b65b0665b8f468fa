// Keys as arrows in the plane, and a query that can be dragged: what a hard and a soft lookup answer.
function view(page, { keys, values, names, query, scale }) {
  const longest = Math.max(...keys.map((key) => Math.hypot(...key)), Math.hypot(...query));
  const reach = 1.5 * longest;
  const [angle, length] = [Math.atan2(query[1], query[0]) * 180 / Math.PI, Math.hypot(...query)];
  const turn = page.slider("direction of the query",
    { min: -180, max: 180, value: Math.round(angle), show: (degrees) => `${fixed(degrees, 0)}°` });
  const stretch = page.slider("its length",
    { min: 0, max: reach.toFixed(1), step: 0.05, value: length.toFixed(2), show: fixed });
  const sharpen = page.slider("scores are multiplied by",
    { min: 0, max: 16, step: 0.5, value: scale, show: (number) => fixed(number, 1) });

  const size = 280, unit = size / 2 / (1.05 * reach);
  const at = ([x, y]) => [size / 2 + unit * x, size / 2 - unit * y];
  const drawing = draw("svg", { viewBox: `0 0 ${size} ${size}`, width: size, "aria-hidden": "true" });
  const arrows = draw("g"), handle = draw("circle", { r: 14, fill: COLORS[1], "fill-opacity": 0.3 });
  drawing.append(draw("path", { d: `M0 ${size / 2}H${size}M${size / 2} 0V${size}`, stroke: "#d9d9d9" }), arrows, handle);
  page.add(drawing);
  const table = page.table("each key, and its share", ["key", "value", "q · k", "score", "hard", "soft"]);
  page.drag(drawing, handle, (x, y) => {
    const [across, up] = [(x - size / 2) / unit, (size / 2 - y) / unit];
    turn.value = Math.atan2(up, across) * 180 / Math.PI;
    stretch.value = Math.hypot(across, up);
  });

  return () => {
    const radians = turn.valueAsNumber * Math.PI / 180;
    const asked = [Math.cos(radians), Math.sin(radians)].map((each) => each * stretch.valueAsNumber);
    const matches = keys.map((key) => dot(asked, key));
    const scores = matches.map((match) => match * sharpen.valueAsNumber);
    const soft = softmax(scores), best = scores.indexOf(Math.max(...scores));
    arrows.replaceChildren(...keys.flatMap((key, place) => {
      const [x, y] = at(key), [far, high] = at(key.map((each) => each * 1.22));
      return [arrow(size / 2, size / 2, x, y, COLORS[0], 1 + 5 * soft[place]),
        draw("text", { x: far, y: high + 4, "text-anchor": "middle" }, names[place])];
    }), arrow(size / 2, size / 2, ...at(asked), COLORS[1], 3));
    const [x, y] = at(asked);
    handle.setAttribute("cx", x);
    handle.setAttribute("cy", y);
    table.fill(names.map((name, place) => [name, fixed(values[place], 1), fixed(matches[place]), fixed(scores[place]),
      ...[place === best ? 1 : 0, soft[place]].map((share) => ({ text: fixed(share), share }))]));
    page.say(`The hard lookup answers ${fixed(values[best], 1)}, the value of ${names[best]}. ` +
      `The soft lookup answers ${fixed(dot(soft, values))}, a mixture of all.`);
  };
}
