// The page of the server: text on the left, translations on the right, and below them the attention of a chosen word.
(function () {
  "use strict";
  const at = (id) => document.getElementById(id);
  const source = at("source"), results = at("results"), state = at("state"), attention = at("attention");

  // Messages for people by status. The messages in the server's answers are for programs.
  const SENTENCES = {
    408: "The text did not reach the server in time. Check the connection and try again.",
    413: "The text is too long.",
    422: "The text cannot be processed.",
    503: "The server is busy. Try again in a moment.",
    504: "The server took too long. Try again, or try a shorter text.",
  };
  const UNREACHABLE = "The server cannot be reached. Check that it is running and try again.";
  const FAILED = "Something went wrong on the server. Its log has the details.";
  const UNSPACED =  // text in scripts without spaces between words
    /([\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Thai}\p{scx=Lao}\p{scx=Khmer}\p{scx=Myanmar}]+)/u;

  function make(parent, tag, attributes = {}, text = null) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== null) made.textContent = text;
    parent.append(made);
    return made;
  }

  function showState(text, wrong = false) {
    state.textContent = text;
    state.classList.toggle("wrong", wrong);
  }

  // Returns the server's answer. Throws an error with a message for people and the status, 0 if there was no answer.
  async function ask(path, body) {
    const failed = (status, sentence) => Object.assign(new Error(sentence), { status });
    let response;
    try {
      response = await fetch(path, body && {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
      });
      if (response.ok) return await response.json();
    } catch {
      throw failed(0, UNREACHABLE);
    }
    const seconds = Number(response.headers.get("Retry-After"));
    const busy = seconds > 1 && `The server is busy. Try again in ${seconds} seconds.`;
    throw failed(response.status, busy || SENTENCES[response.status] || FAILED);
  }

  async function trying(work) {
    try {
      await work();
    } catch (error) {
      showState(error.message, true);
    }
  }

  let model = null, asking = null;
  async function learnModel() {
    asking ||= ask("model");  // one request for all callers
    const about = await asking.finally(() => { asking = null; });
    if (model) return;
    model = about;
    at("model").textContent = document.title = model.model;
    for (let n = 1; n <= model.max_nbest; n++) make(at("nbest"), "option", { value: n }, n);
    for (const code of model.languages) make(at("to"), "option", { value: code }, languageName(code));
    at("languages").hidden = model.languages.length < 2;
    at("several").hidden = model.max_nbest === 1;
    at("found").textContent = model.trees ? "Tree" : "Translation";
  }

  function languageName(code) {
    try {
      return new Intl.DisplayNames("en", { type: "language" }).of(code.replaceAll("_", "-"));
    } catch {  // not a code of BCP 47
      return code;
    }
  }

  let busy = false, to;  // the target language of the results, undefined for a model of one direction
  at("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (busy) return;
    busy = at("translate").disabled = true;
    results.replaceChildren();
    attention.hidden = true;
    trying(translate).finally(() => { busy = at("translate").disabled = false; });
  });
  source.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("form").requestSubmit();
  });

  async function translate() {
    const lines = source.value.trim() ? source.value.split("\n").map((line) => line.trim()) : [];
    if (!lines.length) return showState("Enter a text first.", true);
    showState("Translating …");
    if (!model) await learnModel();
    to = at("to").value || undefined;
    const began = performance.now(), count = lines.filter(Boolean).length;
    let failed = 0;
    for (let i = 0; i < lines.length; i += model.max_texts) {
      const some = lines.slice(i, i + model.max_texts), found = await translations(some.filter(Boolean));
      for (const line of some) failed += !(await show(line, line ? found.shift() : []));
    }
    const seconds = (performance.now() - began) / 1000;
    if (!failed) return showState(`${seconds.toFixed(2)} s`);
    showState(count === 1 ? "" : `${failed} of ${count} lines could not be processed.`, true);
  }

  // Returns the outputs of each text. A text that the server refuses gets null and does not affect the others.
  async function translations(texts) {
    if (!texts.length) return [];
    try {
      return (await ask("translate", { texts, nbest: Number(at("nbest").value), to })).translations;
    } catch (error) {
      if (![413, 422].includes(error.status)) throw error;
      const half = Math.ceil(texts.length / 2);
      if (half === texts.length) return [null];
      return [...await translations(texts.slice(0, half)), ...await translations(texts.slice(half))];
    }
  }

  // Shows the outputs of a line. Returns false if the server refused the line.
  async function show(text, outputs) {
    const entry = make(results, "li", text ? {} : { class: "blank" });
    if (!outputs) {
      const limit = model.max_characters.toLocaleString("en");
      const advice = text.length > model.max_characters
        ? `This line is too long: at most ${limit} characters are possible.`
        : "This line could not be processed; it may be too long.";
      make(entry, "p", { class: "wrong" }, `${advice} Put each sentence on its own line.`);
      return false;
    }
    const list = make(entry, "ol");
    for (const output of outputs) {
      const row = make(list, "li");
      const score = output.score === null ? "–" : output.score.toFixed(3);
      if (outputs.length > 1) make(row, "span", { class: "score", title: "score" }, score);
      const shown = make(row, "span", { class: "text", lang: "", dir: "auto" });
      if (model.attention) showWords(shown, text, output.text);
      else shown.textContent = output.text;
      if (model.trees && output.text) await showTree(make(list, "li", { class: "tree" }), output.text);
    }
    return true;
  }

  async function showTree(place, tree) {
    try {
      const { svg } = await ask("tree", { tree });
      const drawn = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
      place.append(document.importNode(drawn, true));
    } catch {  // a tree that cannot be drawn does not affect the others
      make(place, "p", { class: "wrong" }, "This tree could not be drawn.");
    }
  }

  // Splits a text into words that can be clicked, also in scripts without spaces between words.
  function parts(text) {
    const segments = new Intl.Segmenter(undefined, { granularity: "word" });
    const words = (run) => UNSPACED.test(run) ? Array.from(segments.segment(run), (one) => one.segment) : [run];
    return text.split(/(\s+)/).flatMap((run) => run.split(UNSPACED)).filter(Boolean).flatMap(words);
  }

  const size = (text) => text.replace(/\s/gu, "").length;

  function showWords(parent, text, translation) {
    let offset = 0;  // number of characters before the word, without spaces
    for (const part of parts(translation)) {
      if (!part.trim()) {
        parent.append(part);
        continue;
      }
      const word = make(parent, "button", { type: "button", class: "word", "aria-pressed": "false" }, part);
      const place = offset;
      word.addEventListener("click", () => trying(() => showAttention(word, text, translation, place)));
      offset += size(part);
    }
  }

  async function showAttention(word, text, translation, offset) {
    results.querySelectorAll(".word[aria-pressed=true]").forEach((one) => one.setAttribute("aria-pressed", "false"));
    let data;
    try {
      data = await ask("attention", { source: text, target: translation, to });
    } catch (error) {
      attention.hidden = true;
      if (error.status === 422) error.message = "Attention can only be shown for shorter lines.";
      throw error;
    }
    word.setAttribute("aria-pressed", "true");
    const words = data.maps[data.chosen.map].forms[data.chosen.form].queries;
    let index = 0;
    for (let end = size(words[0]); end <= offset && index < words.length - 1; end += size(words[index])) index++;
    data.chosen.pinned = { side: "queries", index };
    attention.hidden = false;
    attention.replaceChildren();
    attentionView(make(attention, "div"), data);
    showState("");
    attention.scrollIntoView({ block: "nearest" });
  }

  trying(learnModel);
})();
