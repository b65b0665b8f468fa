// The mask algebra: rules are joined from left to right; what they allow is drawn and counted.

// Each rule as in Python: its parameters with the values they begin with, and a predicate on positions. `i` is the
// query, `j` the key.
const part = (position, size) => Math.floor(position / size);
const RULES = {
  full: { starts: {}, allows: () => true },
  causal: { starts: {}, allows: (i, j) => i >= j },
  sliding_window: { starts: { radius: 2 }, allows: (i, j, { radius }) => Math.abs(i - j) <= radius },
  dilated: {
    starts: { radius: 2, dilation: 2 },
    allows: (i, j, { radius, dilation }) => Math.abs(i - j) <= radius * dilation && (i - j) % dilation === 0,
  },
  global_tokens: {
    starts: { positions: [0] },
    allows: (i, j, { positions }) => positions.includes(i) || positions.includes(j),
  },
  block_local: {
    starts: { size: 4, radius: 0 },
    allows: (i, j, { size, radius }) => Math.abs(part(i, size) - part(j, size)) <= radius,
  },
  strided_keys: { starts: { stride: 4 }, allows: (i, j, { stride }) => (i - j) % stride === 0 },
  summary_columns: {
    starts: { stride: 4, columns: 1 },
    allows: (i, j, { stride, columns }) => j % stride >= stride - columns,
  },
};
const LEAST = { size: 1, stride: 1, dilation: 1, columns: 1 }; // 0 for the others

function view(page, { terms, length, far }) {
  const list = make("div", { style: "flex: 1 1 100%" });
  page.controls.append(list);
  const state = structuredClone(terms); // two equal views share their data, not their state
  const change = () => { build(); page.refresh(); };

  // One line of controls per rule.
  function line(term, place) {
    const label = (name, input, read) => {
      input.addEventListener("input", () => read(input));
      return make("label", {}, name, input);
    };
    const choice = (name, options, chosen, read) => {
      const select = make("select", { "aria-label": name },
        ...options.map((option) => make("option", { selected: option === chosen }, option)));
      select.addEventListener("input", () => read(select.value));
      return select;
    };
    const not = make("input", { type: "checkbox", checked: term.not });
    const controls = Object.entries(term.values).map(([name, value]) => Array.isArray(value)
      ? label(name, make("input", { type: "text", size: 6, value: value.join(", ") }),
        (input) => { term.values[name] = (input.value.match(/\d+/g) ?? []).map(Number); })
      : label(name, make("input", { type: "number", min: LEAST[name] ?? 0, max: 99, value }), (input) => {
        if (input.validity.valid && input.value) term.values[name] = input.valueAsNumber;
      }));
    const remove = make("button", { type: "button", "aria-label": `remove rule ${place + 1}` }, "×");
    remove.addEventListener("click", () => {
      state.splice(place, 1);
      change();
      list.children[Math.max(0, place - 1)].querySelector("button, select").focus();
    });
    return make("div", { class: "controls", style: "gap: 4px 10px", role: "group", "aria-label": `rule ${place + 1}` },
      ...(place ? [choice(`how rule ${place + 1} is joined`, ["&", "|"], term.sign, (sign) => { term.sign = sign; })] : []),
      label("~ not", not, () => { term.not = not.checked; }),
      choice(`rule ${place + 1}`, Object.keys(RULES), term.rule, (rule) => {
        Object.assign(term, { rule, values: structuredClone(RULES[rule].starts) });
        change();
        list.children[place].querySelector(`[aria-label="rule ${place + 1}"]`).focus();
      }),
      ...controls, ...(state.length > 1 ? [remove] : []));
  }
  function build() { list.replaceChildren(...state.map(line)); }
  build();
  page.button("add a rule", () => {
    state.push({ sign: "&", not: false, rule: "causal", values: {} });
    build();
    list.lastElementChild.querySelector("select").focus();
  });
  const size = page.slider("positions", { min: 4, max: 48, value: length });
  const row = page.slider("look at query", { min: 0, max: length - 1, value: Math.min(6, length - 1) });

  const wide = 300, cells = draw("path", { fill: COLORS[0] }), band = draw("rect", { fill: "none", stroke: COLORS[1] });
  const drawing = draw("svg", { width: wide, "aria-hidden": "true" }, cells, band);
  const code = make("code");
  page.add(make("div", { class: "part" },
    make("p", { class: "caption" }, "A row per query, a column per key; filled: may look."), drawing),
  make("p", { class: "part" }, "In Python: ", code));

  return () => {
    const count = size.valueAsNumber;
    row.max = count - 1;
    const allows = state.map(({ rule, values, not }) => (i, j) => RULES[rule].allows(i, j, values) !== not);
    const seen = (i, j) => allows.reduce((so, each, place) =>
      (place === 0 ? each(i, j) : state[place].sign === "&" ? so && each(i, j) : so || each(i, j)), true);
    const pairs = (n) => sum(range(n).map((i) => range(n).filter((j) => seen(i, j)).length));
    drawing.setAttribute("viewBox", `-0.2 -0.2 ${count + 0.4} ${count + 0.4}`);
    cells.setAttribute("d", range(count).flatMap((i) => range(count).filter((j) => seen(i, j))
      .map((j) => `M${j + 0.04} ${i + 0.04}h.92v.92h-.92z`)).join("") || "M0 0");
    const frame = { x: 0, y: row.valueAsNumber, width: count, height: 1, "stroke-width": count / 120 };
    for (const [name, value] of Object.entries(frame)) band.setAttribute(name, value);
    code.textContent = state.reduce((so, { sign, not, rule, values }, place) => {
      const given = Object.values(values).map((value) => (Array.isArray(value) ? `[${value.join(", ")}]` : value));
      const term = `${not ? "~" : ""}${rule}(${given.join(", ")})`;
      return place === 0 ? term : `${place > 1 ? `(${so})` : so} ${sign} ${term}`;
    }, "");
    const keys = range(count).filter((j) => seen(row.valueAsNumber, j)), all = pairs(count);
    page.say(`${all} of ${count * count} pairs, ${fixed(100 * all / count ** 2, 1)} %; ` +
      `with ${far} positions ${pairs(far)}. Query ${row.value} sees ${keys.length} ${keys.length === 1 ? "key" : "keys"}` +
      `${keys.length ? `: ${keys.join(", ")}` : ""}.`);
  };
}
