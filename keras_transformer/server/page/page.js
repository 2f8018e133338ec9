// The page of the server: text left, translations right, and below them what a chosen word attended to.
(function () {
  "use strict";
  const at = (id) => document.getElementById(id);
  const source = at("source"), results = at("results"), state = at("state"), attention = at("attention");

  function make(parent, tag, attributes = {}, text = null) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== null) made.textContent = text;
    parent.append(made);
    return made;
  }

  function tell(text, wrong = false) {
    state.textContent = text;
    state.classList.toggle("wrong", wrong);
  }

  // What the server answers; an error is its sentence.
  async function ask(path, body) {
    let response, answer;
    try {
      response = await fetch(path, body && {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
      });
      answer = await response.json();
    } catch {
      throw new Error("The server does not answer.");
    }
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }

  async function trying(work) {
    try {
      await work();
    } catch (error) {
      tell(error.message, true);
    }
  }

  let model = null, asking = null;
  async function learnModel() {
    asking ||= ask("model");  // once, however many wait for it
    const about = await asking.finally(() => { asking = null; });
    if (model) return;
    model = about;
    at("model").textContent = document.title = model.model;
    for (let n = 1; n <= model.most_nbest; n++) make(at("nbest"), "option", { value: n }, n);
    at("several").hidden = model.most_nbest === 1;
    at("found").textContent = model.trees ? "Tree" : "Translation";
  }

  let busy = false;
  at("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (busy) return;
    busy = at("translate").disabled = true;
    trying(translate).finally(() => { busy = at("translate").disabled = false; });
  });
  source.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("form").requestSubmit();
  });

  async function translate() {
    if (!model) await learnModel();
    const texts = source.value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!texts.length) return tell("There is no text.", true);
    tell("…");
    const began = performance.now();
    const found = [];
    for (let i = 0; i < texts.length; i += model.most_texts) {
      const some = texts.slice(i, i + model.most_texts);
      found.push(...(await ask("translate", { texts: some, nbest: Number(at("nbest").value) })).translations);
    }
    const seconds = (performance.now() - began) / 1000;
    attention.hidden = true;
    results.replaceChildren();
    for (const [i, outputs] of found.entries()) await show(texts[i], outputs);
    tell(`${seconds.toFixed(2)} s`);
  }

  async function show(text, outputs) {
    const entry = make(results, "li"), list = make(entry, "ol");
    for (const output of outputs) {
      const row = make(list, "li");
      const score = output.score === null ? "–" : output.score.toFixed(3);
      if (outputs.length > 1) make(row, "span", { class: "score", title: "score" }, score);
      const shown = make(row, "span", { class: "text", lang: "" });
      if (model.attention) showWords(shown, text, output.text);
      else shown.textContent = output.text;
      if (model.trees && output.text) await showTree(make(list, "li", { class: "tree" }), output.text);
    }
  }

  async function showTree(place, tree) {
    try {
      const { svg } = await ask("tree", { tree });
      const drawn = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
      place.append(document.importNode(drawn, true));
    } catch (error) {  // one that cannot be drawn hides no other
      place.textContent = error.message;
    }
  }

  function showWords(parent, text, translation) {
    translation.split(/(\s+)/).forEach((part, i) => {
      if (i % 2 || !part) return parent.append(part);
      const word = make(parent, "button", { type: "button", class: "word", "aria-pressed": "false" }, part);
      word.addEventListener("click", () => trying(() => showAttention(word, text, translation, i / 2)));
    });
  }

  async function showAttention(word, text, translation, index) {
    const data = await ask("attention", { source: text, target: translation });
    results.querySelectorAll(".word[aria-pressed=true]").forEach((one) => one.setAttribute("aria-pressed", "false"));
    word.setAttribute("aria-pressed", "true");
    const words = data.maps[data.chosen.map].forms[data.chosen.form].queries.length;
    data.chosen.pinned = { side: "queries", index: Math.min(index, words - 1) };
    attention.hidden = false;
    attention.replaceChildren();
    attentionView(make(attention, "div"), data);
    tell("");
    attention.scrollIntoView({ block: "nearest" });
  }

  trying(learnModel);
})();
