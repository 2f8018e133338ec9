// The page of the server: text on the left, translations on the right, and below them the attention of a chosen word.
(function () {
  "use strict";
  const at = (id) => document.getElementById(id);
  const source = at("source"), results = at("results"), state = at("state"), attention = at("attention");

  // User-facing messages by status. The messages in the server's answers are for programs.
  const SENTENCES = {
    0: "The server cannot be reached. Check that it is running and try again.",
    408: "The text did not reach the server in time. Check the connection and try again.",
    413: "The text is too long.",
    422: "The text cannot be processed.",
    503: "The server is busy. Try again in a moment.",
    504: "The server took too long. Try again, or try a shorter text.",
  };
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

  function failed(status) {
    return Object.assign(new Error(SENTENCES[status] || FAILED), { status });
  }

  // Returns the server's response. Throws an error with a user-facing message and the status, which is 0 without an answer.
  async function request(path, body) {
    const response = await fetch(path, body && {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    }).catch(() => { throw failed(0); });
    if (response.ok) return response;
    throw failed(response.status);
  }

  async function ask(path, body) {
    const response = await request(path, body);
    return response.json().catch(() => { throw failed(0); });
  }

  // Calls arrived(index of the text, translation) for each sentence, and returns the outputs of each text.
  async function stream(body, arrived) {
    const response = await request("translate", { ...body, stream: true });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read().catch(() => ({ done: true }));
      if (done) throw failed(0);  // the last line is missing
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const found = JSON.parse(line);
        if (found.error) throw failed(found.status);
        if (!found.position) return found.translations;
        arrived(found.position[0], found.translations[0].text);
      }
    }
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
    if (model.languages.length > 1) for (const code of model.languages) make(at("to"), "option", { value: code }, languageName(code));
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
    if (!lines.length) return showState("Enter some text first.", true);
    showState("Translating …");
    if (!model) await learnModel();
    to = at("to").value || undefined;
    const began = performance.now(), count = lines.filter(Boolean).length;
    let failures = 0;
    for (let i = 0; i < lines.length; i += model.max_texts) {
      const entries = lines.slice(i, i + model.max_texts).map((text) => (
        { text, place: make(results, "li", text ? {} : { class: "blank" }) }
      ));
      failures += await fill(entries.filter((entry) => entry.text));
    }
    const seconds = (performance.now() - began) / 1000;
    if (!failures) return showState(`${seconds.toFixed(2)} s`);
    showState(count === 1 ? "" : `${failures} of ${count} lines could not be processed.`, true);
  }

  // Translates lines and shows each sentence as soon as it arrives. Returns the number of rejected lines, which do not
  // affect the others.
  async function fill(entries) {
    if (!entries.length) return 0;
    for (const { place } of entries) place.replaceChildren();
    try {
      const texts = entries.map((entry) => entry.text);
      const found = await stream({ texts, nbest: Number(at("nbest").value), to }, (i, text) => {
        const place = entries[i].place;
        const shown = place.lastChild || make(place, "p", { class: "text", lang: "", dir: "auto" });
        shown.append(shown.textContent && " ", text);
      });
      for (const [i, entry] of entries.entries()) await show(entry, found[i]);
      return 0;
    } catch (error) {
      if (![413, 422].includes(error.status)) throw error;
      const half = Math.ceil(entries.length / 2);
      if (half < entries.length) return await fill(entries.slice(0, half)) + await fill(entries.slice(half));
      showRefusal(entries[0]);
      return 1;
    }
  }

  function showRefusal({ text, place }) {
    const limit = model.max_characters.toLocaleString("en");
    const advice = text.length > model.max_characters
      ? `This line is too long: it can have at most ${limit} characters.`
      : "This line could not be processed; it may be too long.";
    place.replaceChildren();
    make(place, "p", { class: "wrong" }, `${advice} Put each sentence on its own line.`);
  }

  async function show({ text, place }, outputs) {
    place.replaceChildren();
    const list = make(place, "ol");
    for (const output of outputs) {
      const row = make(list, "li");
      const score = output.score === null ? "–" : output.score.toFixed(3);
      if (outputs.length > 1) make(row, "span", { class: "score", title: "score" }, score);
      const shown = make(row, "span", { class: "text", lang: "", dir: "auto" });
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
    } catch {  // a tree that cannot be drawn does not affect the others
      make(place, "p", { class: "wrong" }, "This tree could not be drawn.");
    }
  }

  // Splits a text into words that can be clicked, including in scripts without spaces between words.
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
      if (error.status === 422) error.message = "Attention can be shown only for shorter lines.";
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
