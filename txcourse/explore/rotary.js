// A query and a key, each pair of their dimensions an arrow that turns with the position: the score of both depends on
// their distance only.
function view(page, { query, key, frequency, length, shown, start }) {
  const last = length - 1, pairs = range(frequency.length);
  const [asks, answers] = ["query", "key"].map((name, place) =>
    page.slider(`${name} at position`, { min: 0, max: last, value: start[place] }));
  const together = page.tick("move both together");
  const pair = (vector, number) => [vector[2 * number], vector[2 * number + 1]];
  const turned = (vector, number, position) => {
    const [x, y] = pair(vector, number), angle = position * frequency[number];
    return [x * Math.cos(angle) - y * Math.sin(angle), x * Math.sin(angle) + y * Math.cos(angle)];
  };
  const products = (i, j) => pairs.map((number) => dot(turned(query, number, i), turned(key, number, j)));
  const distances = range(2 * last + 1).map((place) => place - last);
  const scores = distances.map((distance) => sum(products(0, distance)));

  let before = [...start];
  for (const [mine, input, other] of [[0, asks, answers], [1, answers, asks]]) {
    input.addEventListener("input", () => {
      if (!together.checked) return;
      const distance = before[1 - mine] - before[mine]; // at the edge both stop
      input.value = Math.min(Math.max(input.valueAsNumber, -distance), last - distance);
      other.value = input.valueAsNumber + distance;
    });
  }

  const size = 150, middle = size / 2;
  const longest = Math.max(...range(shown).flatMap((number) => [query, key].map((each) => Math.hypot(...pair(each, number)))));
  const unit = (middle - 8) / longest;
  const dials = range(shown).map((number) => {
    const arrows = draw("g"), text = make("figcaption", { style: "text-align: center" });
    const circle = (vector, color) => draw("circle", { cx: middle, cy: middle, r: unit * Math.hypot(...pair(vector, number)),
      fill: "none", stroke: color, "stroke-opacity": 0.25 });
    const drawing = draw("svg", { viewBox: `0 0 ${size} ${size}`, width: size },
      circle(query, COLORS[0]), circle(key, COLORS[1]), arrows);
    return { arrows, text, figure: make("figure", { style: "margin: 0" }, drawing, text) };
  });
  page.add(make("div", { style: "display: flex; flex-wrap: wrap; gap: 10px 24px", "aria-hidden": "true" },
    ...dials.map(({ figure }) => figure)));

  const [width, height, low, high] = [460, 160, Math.min(...scores), Math.max(...scores)];
  const x = (distance) => 20 + (width - 40) * (distance + last) / (2 * last);
  const y = (score) => 8 + (height - 56) * (high - score) / (high - low);
  const line = draw("line", { y1: 0, y2: height - 38, stroke: GRAY, "stroke-dasharray": "3 3" });
  const point = draw("circle", { r: 6, fill: COLORS[1] });
  const names = [-last, 0, last].map((distance, place) =>
    draw("text", { x: x(distance), y: height - 22, "text-anchor": ["start", "middle", "end"][place] }, fixed(distance, 0)));
  page.add(draw("svg", { viewBox: `0 0 ${width} ${height}`, width, style: "margin-top: 10px", "aria-hidden": "true" },
    draw("polyline", { points: distances.map((each, place) => `${x(each)},${y(scores[place])}`).join(" "),
      fill: "none", stroke: COLORS[0], "stroke-width": 1.5 }),
    line, point, ...names,
    draw("text", { x: width / 2, y: height - 4, "text-anchor": "middle" }, "score against the distance, key − query")));
  const table = page.table("each pair by itself", ["pair", "radians per position", "query turned by", "key turned by",
    "angle from query to key", "its product"]);

  return () => {
    const [i, j] = [asks, answers].map((input) => input.valueAsNumber), each = products(i, j), score = sum(each);
    before = [i, j];
    for (const [number, { arrows, text }] of dials.entries()) {
      arrows.replaceChildren(...[[query, i, COLORS[0]], [key, j, COLORS[1]]].map(([vector, position, color]) => {
        const [right, up] = turned(vector, number, position);
        return arrow(middle, middle, middle + unit * right, middle - unit * up, color, 2.5);
      }));
      text.textContent = `pair ${number}: ${fixed(each[number])}`;
    }
    for (const [name, place] of [["x1", x(j - i)], ["x2", x(j - i)]]) line.setAttribute(name, place);
    point.setAttribute("cx", x(j - i));
    point.setAttribute("cy", y(score));
    const degrees = (angle) => `${fixed(angle * 180 / Math.PI, 0)}°`;
    table.fill(pairs.map((number) => {
      const [[a, b], [c, d]] = [turned(query, number, i), turned(key, number, j)];
      return [number, fixed(frequency[number], 4), ...[i, j].map((position) => degrees(position * frequency[number])),
        degrees(Math.atan2(a * d - b * c, a * c + b * d)), fixed(each[number], 3)];
    }));
    page.say(`Query (blue) at ${i}, key (orange) at ${j}: the distance is ${fixed(j - i, 0)}, and the products of all ` +
      `${pairs.length} pairs add up to a score of ${fixed(score, 3)}.`);
  };
}
