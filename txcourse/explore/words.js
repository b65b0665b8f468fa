// Words that look at words: lines between two columns of them, strong where the weight is large, and the same as a
// table. The weights are hundredths, rounded by Python.
function words(page, { rows, columns }) {
  const asking = page.choice("the lines of", ["all words", ...distinct(rows)]);
  const line = 21, [left, right] = [128, 232];
  const height = line * Math.max(rows.length, columns.length) + 8, y = (place) => line * (place + 0.5) + 4;
  const lines = draw("g", { stroke: COLORS[0] });
  const column = (names, x, anchor) => names.map((name, place) => draw("text",
    { x, y: y(place) + 5, "text-anchor": anchor, ...(anchor === "end" && { cursor: "pointer" }) }, name));
  const asked = column(rows, left - 6, "end");
  asked.forEach((text, place) => text.addEventListener("click", () => {
    asking.selectedIndex = asking.selectedIndex === place + 1 ? 0 : place + 1;
    page.refresh();
  }));
  page.add(draw("svg", { viewBox: `0 0 360 ${height}`, width: 340, "aria-hidden": "true" },
    lines, ...asked, ...column(columns, right + 6, "start")));
  const table = page.table("weights in hundredths: a row for each word that asks", ["", ...columns], "matrix");

  return (weights, name) => {
    const chosen = asking.selectedIndex - 1;
    lines.replaceChildren(...weights.flatMap((row, query) => row.map((weight, key) => draw("line", {
      x1: left, y1: y(query), x2: right, y2: y(key), "stroke-width": 1 + 3 * weight / 100,
      "stroke-opacity": chosen === -1 || chosen === query ? weight / 100 : 0,
    }))));
    asked.forEach((text, place) => text.setAttribute("font-weight", place === chosen ? "bold" : "normal"));
    table.fill(rows.map((word, query) => [word, ...weights[query].map((weight) =>
      ({ text: weight, share: weight / 100 }))]));
    const asks = chosen === -1 ? range(rows.length) : [chosen];
    const pairs = asks.flatMap((query) => range(columns.length).map((key) => [query, key, weights[query][key]]));
    const strongest = pairs.sort((one, other) => other[2] - one[2]).slice(0, 4);
    page.say(`${name}. ${chosen === -1 ? "The strongest of all" : `The strongest of “${rows[chosen]}”`}: ` +
      strongest.map(([query, key, weight]) => `${chosen === -1 ? `“${rows[query]}” on ` : ""}“${columns[key]}” ` +
        fixed(weight / 100)).join(", ") + ".");
  };
}
