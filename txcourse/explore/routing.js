// Tokens of a text and the experts that a router sends them to, in each of its layers: how busy the experts are, and who
// is dropped where room is limited.

// The k likeliest experts of each token, the likeliest first, with their gates; and whether there was room, first
// choices before second ones, in the order of the text.
function routed(probabilities, k, capacity) {
  const chosen = probabilities.map((shares) =>
    range(shares.length).sort((one, other) => shares[other] - shares[one] || one - other).slice(0, k));
  const taken = probabilities[0].map(() => 0), asking = probabilities[0].map(() => 0);
  const kept = chosen.map(() => []);
  for (const choice of range(k)) {
    for (const [token, experts] of chosen.entries()) {
      const expert = experts[choice], room = asking[expert]++ < capacity;
      kept[token].push(room);
      taken[expert] += room;
    }
  }
  const gates = chosen.map((experts, token) => {
    const shares = experts.map((expert) => probabilities[token][expert]);
    return k > 1 ? shares.map((share) => share / sum(shares)) : shares;
  });
  return { chosen, gates, kept, taken, asking };
}

function view(page, { tokens, routers, k: first, factors, factor }) {
  const names = Object.keys(routers), experts = routers[names[0]][0].length;
  const router = page.choice("router", names);
  const k = page.slider("experts per token", { min: 1, max: Math.min(4, experts), value: first });
  const limit = page.slider("capacity factor", { min: 0, max: factors.length, value: factor,
    show: (place) => (place < factors.length ? fixed(factors[place]) : "no limit") });

  const room = 72;
  page.add(make("style", {}, ".text td, .text thead th { padding: 1px; min-width: 13px; text-align: center }"));
  const table = page.table("A 1 is a token's first choice, a 2 its second; the darker, the larger its gate. A × found no room.",
    ["expert", "takes", ...tokens], "text");

  return () => {
    const probabilities = routers[names[router.selectedIndex]], choices = k.valueAsNumber;
    const factor = factors[limit.valueAsNumber];
    const capacity = factor === undefined ? Infinity : Math.ceil(factor * tokens.length * choices / experts);
    const { chosen, gates, kept, taken, asking } = routed(probabilities, choices, capacity);
    const unit = room / Math.max(...asking, capacity < Infinity ? capacity : 0);
    table.fill(range(experts).map((expert) => {
      const bar = draw("svg", { width: room, height: 14, style: "display: inline-block; vertical-align: middle; max-width: none", "aria-hidden": "true" },
        draw("rect", { width: unit * asking[expert], height: 14, fill: "#c8c8c8" }),
        draw("rect", { width: unit * taken[expert], height: 14, fill: COLORS[0] }),
        capacity < Infinity && draw("path", { d: `M${Math.min(unit * capacity, room - 1)} 0v14`, stroke: COLORS[1], "stroke-width": 2 }) || "");
      const left = asking[expert] > taken[expert] ? `${taken[expert]} of ${asking[expert]}` : taken[expert];
      return [expert, make("div", { style: "text-align: left" }, bar, ` ${left}`), ...tokens.map((_, token) => {
        const place = chosen[token].indexOf(expert);
        if (place < 0) return "";
        return kept[token][place] ? { text: place + 1, share: gates[token][place] } : "×";
      })];
    }));
    const all = tokens.length * choices, dropped = all - sum(taken), busiest = asking.indexOf(Math.max(...asking));
    const most = `Expert ${busiest} is asked most: ${asking[busiest]} times.`;
    page.say(capacity === Infinity ? `Room for all: none of ${all} choices is dropped. ${most}`
      : `Room for ${capacity} tokens per expert: ${dropped} of ${all} choices (${fixed(100 * dropped / all, 1)} %) are dropped. ${most}`);
  };
}
