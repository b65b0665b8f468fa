// The guesses of a page: a question becomes radio buttons, a result says what was guessed, and the map of the course
// counts. A guess is the chosen option's text, kept by the browser under the question's name, so no kernel is needed.
(() => {
"use strict";
const KEY = "txcourse guess ";
const unkept = (window.txcourseGuesses ??= {}); // a browser may refuse to keep anything: then until the page closes

function recall(name) {
  try { return localStorage.getItem(KEY + name) ?? unkept[name]; } catch { return unkept[name]; }
}

function keep(name, guess) {
  unkept[name] = guess;
  try { localStorage.setItem(KEY + name, guess); } catch { /* see above */ }
}

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The list becomes radio buttons. A form of its own keeps them apart from those of the same question elsewhere.
function ask(place) {
  const name = place.dataset.guess;
  const options = [...place.querySelectorAll("li")].map((item) => make("label", { style: "display: block; padding: 3px 0" },
    make("input", { type: "radio", name, value: item.textContent, style: "margin: 0 8px 0 0" }), item.textContent));
  const legend = make("legend", { style: "all: unset; display: block; font-weight: bold; margin-bottom: 4px" },
    place.querySelector("p").textContent);
  const form = make("form", { "data-lm-suppress-shortcuts": "true" }, // JupyterLab leaves our keys to us
    make("fieldset", { style: "all: unset; display: block" }, legend, ...options),
    make("p", { role: "status", style: "margin: 4px 0 0; opacity: 0.75" }));
  form.addEventListener("keydown", (event) => event.stopPropagation());
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => { keep(name, event.target.value); show(); });
  place.replaceChildren(form);
}

function say(place, text) { if (place.textContent !== text) place.textContent = text; }

function show() {
  for (const place of document.querySelectorAll("[data-guess]")) {
    if (!place.querySelector("form")) ask(place);
    const guess = recall(place.dataset.guess);
    for (const input of place.querySelectorAll("input")) input.checked = input.value === guess;
    say(place.querySelector("[role=status]"), guess === undefined ? "Choose before you read on."
      : "Noted in this browser. You will see it again next to the result.");
  }
  for (const place of document.querySelectorAll("[data-guessed]")) {
    const { guessed, right } = place.dataset;
    const guess = recall(guessed);
    say(place, guess === undefined ? `Right: ${right}. (You made no guess.)`
      : guess === right ? `You guessed right: ${right}.` : `You guessed: ${guess}. Right: ${right}.`);
  }
  for (const place of document.querySelectorAll("[data-guesses]")) {
    const names = place.dataset.guesses.split(" ");
    const made = names.filter((name) => recall(name) !== undefined).length;
    say(place, `${made} of ${names.length} ${names.length === 1 ? "guess" : "guesses"}`);
  }
}

show();
addEventListener("storage", show); // a guess made in another window
})();
