// Below each page that the search finds: its sections that hold the words, with a sentence. Works from files, offline.
const excerpts = {};

function sectionsOf(page) {
  return new Promise((resolve) => {
    if (page in excerpts) return resolve(excerpts[page]);
    const script = document.createElement("script");
    script.src = `_static/excerpts/${page}.js`;
    script.onload = () => resolve(excerpts[page]);
    script.onerror = () => resolve([]);
    document.head.append(script);
  });
}

function excerpt(text, words) {
  const first = Math.min(...words.map((word) => text.toLowerCase().indexOf(word)).filter((at) => at >= 0), text.length);
  const start = first < 80 || first === text.length ? 0 : text.indexOf(" ", first - 80) + 1;
  const end = text.length < start + 220 ? text.length : text.lastIndexOf(" ", start + 220);
  return (start ? "… " : "") + text.slice(start, end) + (end < text.length ? " …" : "");
}

async function addSections(item, words) {
  const link = item.querySelector("a");
  const [page, anchor] = link.getAttribute("href").split("?")[0].split("#");
  const found = (await sectionsOf(page.replace(/\.html$/, "")))
    .map(([id, title, text]) => ({ id, title, text, all: `${title} ${text}`.toLowerCase() }))
    .map((section) => ({ ...section, hits: words.filter((word) => section.all.includes(word)).length }))
    .filter((section) => (anchor ? section.id === anchor : section.hits));
  const most = Math.max(...found.map((section) => section.hits));
  for (const { id, title, text } of found.filter((section) => section.hits === most).slice(0, anchor ? 1 : 3)) {
    const line = item.appendChild(document.createElement("p"));
    line.className = "context";
    if (!anchor) {
      const to = line.appendChild(document.createElement("a"));
      to.href = `${page}#${id}`;
      to.textContent = title;
      line.append(": ");
    }
    line.append(excerpt(text, words));
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const results = document.getElementById("search-results");
  if (!results) return;
  const asked = new URLSearchParams(location.search).get("q") || "";
  const words = asked.toLowerCase().split(/[^\p{L}\p{N}_.]+/u).filter(Boolean);
  new MutationObserver((changes) => {
    for (const { addedNodes } of changes)
      for (const node of addedNodes) if (node.matches?.("ul.search > li") && node.querySelector("a")) addSections(node, words);
  }).observe(results, { childList: true, subtree: true });
});
