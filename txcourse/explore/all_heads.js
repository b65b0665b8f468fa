// All heads at a glance, a row of small maps per layer; the one that is chosen is drawn large.
function view(page, data) {
  const { weights, layers, heads, rows, columns } = data; // (layer, head, query, key)
  const layer = page.choice("layer", layers), head = page.choice("head", heads);
  const cell = Math.min(60, 660 / heads.length), gap = 3, edge = 20;
  const corner = (row, column) => ({ x: edge + column * cell, y: edge + row * cell });
  const maps = weights.flatMap((all, row) => all.map((map, column) => {
    const picture = draw("image", { ...corner(row, column), width: cell - gap, height: cell - gap, href: bitmap(map),
      preserveAspectRatio: "none", style: "image-rendering: pixelated; cursor: pointer" });
    picture.addEventListener("click", () => {
      [layer.selectedIndex, head.selectedIndex] = [row, column];
      page.refresh();
    });
    return picture;
  }));
  const frame = draw("rect", { width: cell - gap, height: cell - gap, fill: "none", stroke: COLORS[1], "stroke-width": 3 });
  const number = (text, x, y) => draw("text", { x, y, "text-anchor": "middle", fill: "#4d4d4d" }, text);
  const width = edge + cell * heads.length + gap, height = edge + cell * layers.length + gap;
  page.add(draw("svg", { viewBox: `0 0 ${width} ${height}`, width, "aria-hidden": "true" }, ...maps, frame,
    ...heads.map((name, place) => number(name, edge + (place + 0.5) * cell, 14)),
    ...layers.map((name, place) => number(name, 8, edge + (place + 0.5) * cell + 4))));
  const show = words(page, data);
  return () => {
    const [row, column] = [layer.selectedIndex, head.selectedIndex];
    for (const [side, value] of Object.entries(corner(row, column))) frame.setAttribute(side, value);
    show(weights[row][column], `Layer ${layers[row]}, head ${heads[column]}`);
  };
}

// A map of weights as an image with one pixel per weight.
function bitmap(map) {
  const canvas = make("canvas", { width: map[0].length, height: map.length });
  const brush = canvas.getContext("2d");
  map.forEach((row, y) => row.forEach((weight, x) => {
    brush.fillStyle = shade(weight / 100);
    brush.fillRect(x, y, 1, 1);
  }));
  return canvas.toDataURL();
}
