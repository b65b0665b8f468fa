// One real distribution of a next token, and what temperature, top-k, top-p and min-p make of it. Logits come sorted,
// the likeliest first, and stay so.
function view(page, { prompts, sizes, start }) {
  const texts = Object.keys(prompts);
  const prompt = page.choice("after", texts);
  const temperature = page.slider("temperature", { min: 0.1, max: 2, step: 0.05, value: start.temperature, show: fixed });
  const k = page.slider("top-k", { min: 0, max: sizes.length, value: start.k ? sizes.indexOf(start.k) : sizes.length,
    show: (place) => (place < sizes.length ? sizes[place] : "all") });
  const p = page.slider("top-p", { min: 0.05, max: 1, step: 0.05, value: start.p, show: (share) => (share < 1 ? fixed(share) : "all") });
  const least = page.slider("min-p", { min: 0, max: 1, step: 0.01, value: start.least, show: (share) => (share > 0 ? fixed(share) : "none") });
  const order = page.choice("order", ["temperature first (ours, transformers)", "filters first (llama.cpp)"]);
  const table = page.table("the likeliest tokens: the model's own share (gray), and what is drawn from (blue)",
    ["token", "share", "model", "drawn"]);

  const keep = (logits, test) => logits.map((logit, place) => (test(logit, place) ? logit : -Infinity));
  const warmed = (logits) => logits.map((logit) => logit / temperature.valueAsNumber);
  function filtered(logits) {
    const [size, nucleus, share] = [sizes[k.valueAsNumber], p.valueAsNumber, least.valueAsNumber];
    if (size) logits = keep(logits, (logit) => logit >= logits[Math.min(size, logits.length) - 1]);
    if (nucleus < 1) {
      let total = 0;
      const before = softmax(logits).map((each) => (total += each) - each); // what likelier tokens already sum to
      logits = keep(logits, (_, place) => before[place] < nucleus);
    }
    if (share > 0) {
      const shares = softmax(logits);
      logits = keep(logits, (_, place) => shares[place] >= share * shares[0]);
    }
    return logits;
  }
  const entropy = (shares) => sum(shares.map((each) => (each > 0 ? -each * Math.log(each) : 0)));
  const whole = (number) => number.toLocaleString("en");
  const percent = (share) => `${fixed(100 * share, share < 0.00995 ? 2 : 1)} %`;

  return () => {
    const { logits, tokens } = prompts[texts[prompt.selectedIndex]];
    const changed = order.selectedIndex ? warmed(filtered(logits)) : filtered(warmed(logits));
    const [own, drawn] = [softmax(logits), softmax(changed)];
    const kept = changed.filter((logit) => logit > -Infinity).length;
    const others = (shares) => sum(shares.slice(tokens.length));
    const rows = [...tokens.map((token, place) => [token, own[place], drawn[place], place < kept]),
      [`${whole(logits.length - tokens.length)} others`, others(own), others(drawn), kept > tokens.length]];
    const longest = Math.max(...rows.flatMap((row) => row.slice(1, 3)));
    table.fill(rows.map(([token, before, after, stays]) => [token,
      draw("svg", { viewBox: "0 0 1 16", preserveAspectRatio: "none", style: "width: clamp(90px, 30vw, 280px); height: 16px", "aria-hidden": "true" },
        draw("rect", { y: 1, width: before / longest, height: 14, fill: "#c8c8c8" }),
        draw("rect", { y: 4, width: after / longest, height: 8, fill: COLORS[0] })),
      percent(before), stays ? percent(after) : "out"]));
    page.say(`${whole(kept)} of ${whole(logits.length)} tokens can be drawn; the model gave them ${percent(sum(own.slice(0, kept)))} together. ` +
      `Entropy: ${fixed(entropy(drawn))} nats, the model's own ${fixed(entropy(own))}.`);
  };
}
