// Shows attention weights inside an element: a line from each query to each key, with one color per head.
//
// data: {colors: ["#…"], maps: [{label, forms: {words: form, pieces: form}}], chosen}
// form: {queries: [text], keys: [text], layers, heads, weights: base64 of uint8 [layers, heads, queries, keys], 255 = 1}
// chosen: {map, layer, heads, form: "words" or "pieces", pinned: {side: "queries" or "keys", index}, optional}
function attentionView(element, data) {
  "use strict";
  const ROW = 26, LEAST = 0.02;  // height of a word in pixels; minimum weight to draw
  const chosen = { map: 0, layer: null, form: "words", heads: new Set() };
  let over = null, pinned = null;  // {side: "queries" or "keys", index}

  const decoded = new Map();
  function current() {
    const form = data.maps[chosen.map].forms[chosen.form];
    if (!decoded.has(form)) {
      decoded.set(form, Uint8Array.from(atob(form.weights), (c) => c.charCodeAt(0)));
    }
    const values = decoded.get(form), layer = Math.min(chosen.layer, form.layers - 1);
    const weight = (head, query, key) =>
      values[((layer * form.heads + head) * form.queries.length + query) * form.keys.length + key] / 255;
    return { ...form, weight };
  }

  function make(parent, tag, attributes = {}, text = null) {
    const svg = tag === "svg" || tag === "path";
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== null) made.textContent = text;
    parent.append(made);
    return made;
  }

  element.replaceChildren();
  element.classList.add("attention-view");
  const controls = make(element, "div", { class: "controls" });
  const sides = make(element, "div", { class: "sides" });
  const message = make(element, "p", { class: "message", "aria-live": "polite" });

  function choice(title, labels, isChosen, choose, attributes = () => ({})) {
    const group = make(controls, "fieldset");
    make(group, "legend", {}, title);
    labels.forEach((label, i) => {
      const button = make(group, "button", { type: "button", "aria-pressed": isChosen(i), ...attributes(i) }, label);
      button.addEventListener("click", (event) => {
        const place = [...controls.children].indexOf(group);
        choose(i, event);
        drawAll();
        controls.children[place].querySelectorAll("button")[i].focus();
      });
    });
  }

  function drawControls() {
    const form = current(), count = (n) => Array.from({ length: n }, (_, i) => String(i + 1));
    controls.replaceChildren();
    choice("attention", data.maps.map((map) => map.label), (i) => i === chosen.map, (i) => {
      chosen.map = i;
      over = pinned = null;
    });
    choice("layer", count(form.layers), (i) => i === chosen.layer, (i) => { chosen.layer = i; });
    choice("heads", [...count(form.heads), "all"], (i) => i === form.heads ? false : chosen.heads.has(i), (i, event) => {
      if (i === form.heads) chosen.heads = new Set(count(form.heads).keys());
      else if (event.detail === 2 || event.shiftKey) chosen.heads = new Set([i]);
      else if (!chosen.heads.delete(i)) chosen.heads.add(i);
    }, (i) => i === form.heads ? { title: "select all heads" } : {
      class: "head", style: `--head: ${data.colors[i % data.colors.length]}`, title: "double-click to select only this head",
    });
    choice("by", ["words", "pieces"], (i) => ["words", "pieces"][i] === chosen.form, (i) => {
      chosen.form = ["words", "pieces"][i];
      over = pinned = null;
    });
  }

  function drawWords() {
    const form = current();
    sides.replaceChildren();
    for (const side of ["queries", "keys"]) {
      const list = make(sides, "ol", { class: side });
      if (side === "queries") make(sides, "svg", { "aria-hidden": "true" });
      make(list, "li", { class: "title" }, side === "queries" ? "from" : "to");
      form[side].forEach((label, index) => {
        const row = make(list, "li");
        const share = side === "keys" ? make(row, "span", { class: "share" }) : null;
        const word = make(row, "button", { type: "button", class: "word", dir: "auto", "aria-pressed": "false" }, label);
        if (share) for (const head of heads()) make(share, "i", { style: `--head: ${color(head)}` });
        const here = { side, index };
        for (const begin of ["pointerenter", "focus"]) word.addEventListener(begin, () => { over = here; drawWeights(); });
        for (const end of ["pointerleave", "blur"]) word.addEventListener(end, () => { over = null; drawWeights(); });
        word.addEventListener("click", () => {
          pinned = pinned && pinned.side === side && pinned.index === index ? null : here;
          drawWeights();
        });
      });
    }
  }

  const heads = () => [...chosen.heads].sort((a, b) => a - b);
  const color = (head) => data.colors[head % data.colors.length];

  // Draws lines, shares and the message for the pinned word or, if there is none, the word under the pointer.
  function drawWeights() {
    const form = current(), shown = pinned || over, all = heads();
    const svg = sides.querySelector("svg");
    const width = svg.clientWidth, y = (index) => (index + 1.5) * ROW;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${(Math.max(form.queries.length, form.keys.length) + 1) * ROW}`);
    svg.setAttribute("preserveAspectRatio", "xMinYMin");
    const isShown = (side, index) => !shown || shown.side !== side || shown.index === index;
    for (const [i, head] of all.entries()) {
      const offset = (i - (all.length - 1) / 2) * Math.min(2.5, 18 / all.length);  // keeps the heads' lines apart
      for (let query = 0; query < form.queries.length; query++) {
        if (!isShown("queries", query)) continue;
        for (let key = 0; key < form.keys.length; key++) {
          const weight = form.weight(head, query, key);
          if (weight < LEAST || !isShown("keys", key)) continue;
          const bend = width / 2;
          make(svg, "path", {
            d: `M0 ${y(query) + offset}C${bend} ${y(query) + offset} ${bend} ${y(key) + offset} ${width} ${y(key) + offset}`,
            style: `--head: ${color(head)}`, "stroke-opacity": weight.toFixed(3), "stroke-width": shown ? 2.5 : 1.5,
          });
        }
      }
    }
    const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);
    const queries = shown && shown.side === "queries" ? [shown.index] : [...form.queries.keys()];
    sides.querySelectorAll(".keys .share").forEach((share, key) => {
      [...share.children].forEach((cell, i) => {
        cell.style.opacity = mean(queries.map((query) => form.weight(all[i], query, key))).toFixed(3);
      });
    });
    for (const side of ["queries", "keys"]) {
      sides.querySelectorAll(`.${side} .word`).forEach((word, index) => {
        const is = (place) => Boolean(place) && place.side === side && place.index === index;
        word.classList.toggle("shown", is(shown));
        word.classList.toggle("pinned", is(pinned));
        word.setAttribute("aria-pressed", is(pinned));
      });
    }
    showMessage(form, shown, all, mean);
  }

  function showMessage(form, shown, all, mean) {
    message.replaceChildren();
    if (!all.length) return message.append("No head is selected.");
    if (!shown) return message.append("Point at a word to see only its attention. Click to pin it, and press Escape to release it.");
    const isQuery = shown.side === "queries", others = isQuery ? form.keys : form.queries;
    const shares = others.map((label, other) => {
      const [query, key] = isQuery ? [shown.index, other] : [other, shown.index];
      return [label, mean(all.map((head) => form.weight(head, query, key)))];
    });
    shares.sort((a, b) => b[1] - a[1]);
    // bdi isolates right-to-left words from the text around them.
    make(make(message, "b"), "bdi", {}, form[shown.side][shown.index]);
    message.append(isQuery ? " attends to " : " is attended to by ");
    shares.slice(0, 5).forEach(([label, share], i) => {
      if (i) message.append(" · ");
      make(message, "bdi", {}, label);
      message.append(` ${Math.round(100 * share)}%`);
    });
    message.append(all.length > 1 ? " (mean of the selected heads)" : ` (head ${all[0] + 1})`);
  }

  function drawAll() {
    drawControls();
    drawWords();
    drawWeights();
  }

  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pinned = null;
    drawWeights();
  });
  new ResizeObserver(drawWeights).observe(sides);
  chosen.map = data.chosen.map;
  chosen.layer = data.chosen.layer;
  chosen.form = data.chosen.form;
  chosen.heads = new Set(data.chosen.heads);
  pinned = data.chosen.pinned || null;
  drawAll();
}
