// The figures that a reader changes. Each output of a notebook carries this file and its numbers.
(() => {
  "use strict";
  const root = document.currentScript.closest(".lrp-interactive");
  const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);

  function dressed(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  const make = (tag, attributes = {}, ...children) =>
    dressed(document.createElement(tag), attributes, children);
  const shape = (tag, attributes = {}, ...children) =>
    dressed(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  const controls = make("div", { class: "controls" });
  const said = make("p", { role: "status", "aria-live": "polite" });
  const picture = make("div");
  const result = make("div", { class: "result" }, said, picture);

  function picker(name, options, changed) {
    const select = make("select");
    const fill = (names) =>
      select.replaceChildren(...names.map((text, i) => make("option", { value: i }, text)));
    fill(options);
    select.addEventListener("change", changed);
    controls.append(make("label", {}, name, select));
    return { fill, get: () => Number(select.value) };
  }

  function slider(name, low, high, value, changed) {
    const input = make("input", { type: "range", min: low, max: high, step: 1, value });
    const shown = make("output", {}, minus(value));
    input.addEventListener("input", () => {
      shown.textContent = minus(input.value);
      changed();
    });
    const label = make("label", {}, name, input, shown);
    controls.append(label);
    return { label, get: () => Number(input.value) };
  }

  // Check boxes in a group; `get` returns the places of those that are checked.
  function group(name, options, checked, changed) {
    const shared = `lrp-${Math.random()}`;
    const boxes = options.map((text, i) => {
      const on = checked(text, i) ? { checked: "" } : {};
      return make("input", { type: "checkbox", name: shared, value: text, ...on });
    });
    const labels = options.map((text, i) => make("label", {}, boxes[i], text));
    const set = make("fieldset", {}, make("legend", {}, name), ...labels);
    set.addEventListener("change", changed);
    controls.append(set);
    return { set, get: () => boxes.flatMap((box, i) => (box.checked ? [i] : [])) };
  }

  const minus = (number) => String(number).replace("-", "−");
  const plain = (number, digits = 2) => minus(Number(number.toFixed(digits)));
  const signed = (number) => (number < 0 ? "" : "+") + minus(number.toFixed(2));
  const drawing = (height, name, ...parts) =>
    shape("svg", { viewBox: `0 0 400 ${height}`, role: "img", "aria-label": name }, ...parts);
  const text = (x, y, words, look = {}) => shape("text", { x, y, ...look }, words);
  function path(points, look) {
    const steps = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`);
    return shape("path", { d: steps.length ? `M${steps.join("L")}` : "", ...look });
  }

  // --- chapter 1: a product and its brackets -----------------------------------------------

  function product() {
    const counts = Object.keys(data.trees);
    const count = picker("Factors", counts, () => (fill(), update()));
    const tree = picker("Brackets", [], () => update());
    const factors = data.values.map((value, i) =>
      slider(`x${i + 1}`, data.low, data.high, value, () => update()));
    factors[0].label.before(make("hr"));
    const names = ["factor", "depth", "relevance", "LOO", "Shapley, IG"];
    const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
    const body = make("tbody");
    const rows = factors.map((_, i) => {
      const cells = names.slice(1).map(() => make("td", {}, make("span")));
      cells[1].append(make("i", { class: "bar", style: "width:0" }));
      body.append(make("tr", {}, make("th", { scope: "row" }, `x${i + 1}`), ...cells));
      return cells;
    });
    const drawn = make("div");
    picture.append(drawn, make("table", {}, make("thead", {}, head), body));
    const listed = () => data.trees[counts[count.get()]];
    // "(x1 · x2) · x3" as [[0, 1], 2].

    const fill = () => tree.fill(listed());
    const nested = (name) => JSON.parse(`[${name.replace(/[()·]|x(\d)/g, (sign, i) =>
      i ? i - 1 : { "(": "[", ")": "]", "·": "," }[sign])}]`);

    function update() {
      const name = listed()[tree.get()];
      const k = Number(counts[count.get()]);
      const values = factors.slice(0, k).map((factor) => factor.get());
      const whole = values.reduce((a, b) => a * b, 1);
      const depths = [];
      const parts = [];
      const place = (x, depth) => [40 + (320 * x) / (k - 1), 24 + (176 * depth) / (k - 1)];
      // Draws a subtree and returns where its top stands.
      (function draw(node, depth) {
        const leaf = typeof node === "number";
        const below = leaf ? [] : node.map((child) => draw(child, depth + 1));
        const x = leaf ? node : (below[0] + below[1]) / 2;
        const here = place(x, depth);
        for (const child of below) {
          const look = { stroke: "var(--below)", "stroke-width": 1 + 11 * 2 ** -(depth + 1) };
          parts.unshift(path([here, place(child, depth + 1)], look));
        }
        if (leaf) depths[node] = depth;
        const label = (leaf ? `x${node + 1}: ` : "") + plain(whole * 2 ** -depth, 4);
        parts.push(text(here[0], here[1] + (leaf ? 18 : -8), label, { "text-anchor": "middle" }));
        return x;
      })(nested(name), 0);
      const relevance = depths.map((depth) => whole * 2 ** -depth);
      factors.forEach((factor, i) => {
        factor.label.hidden = i >= k;
        rows[i][0].parentNode.hidden = i >= k;
        if (i >= k) return;
        const shown = [depths[i], plain(relevance[i], 4), plain(whole), plain(whole / k)];
        shown.forEach((words, column) => (rows[i][column].firstChild.textContent = words));
        rows[i][1].lastChild.style.width = `${whole ? 100 * 2 ** -depths[i] : 0}%`;
      });
      said.textContent = `${name} = ${plain(whole)}. Relevance: ` +
        relevance.map((value, i) => `x${i + 1} ${plain(value, 4)}`).join(", ") +
        `. Leave-One-Out gives each ${plain(whole)}, Shapley and IG ${plain(whole / k)}.`;
      drawn.replaceChildren(drawing(226, `Relevance flowing down ${name}`, ...parts));
    }
    fill();
    update();
  }

  // --- chapter 3: words taken away by hand ----------------------------------------------------

  function removal() {
    const taken = group("Take away", data.words, (_, i) => i === data.first, () => update());
    const maps = Object.entries(data.maps);
    const sum = (scores, kept) => scores.reduce((a, score, i) => a + (kept(score, i) ? score : 0), 0);
    const ends = maps.flatMap(([, scores]) => [sum(scores, (x) => x > 0), -sum(scores, (x) => x < 0)]);
    const most = Math.max(...data.falls.map(Math.abs), ...ends);
    const scale = "All bars have one scale, in logits: to the right the class loses. " +
      `The longest bar possible is ${plain(most)}.`;
    result.append(make("p", {}, make("small", {}, scale)));

    function update() {
      const gone = taken.get();
      const left = data.words.map((word, i) => (gone.includes(i) ? "…" : word)).join(" ");
      const fall = data.falls[gone.reduce((number, i) => number + 2 ** i, 0)];
      const sums = maps.map(([name, scores]) => [name, sum(scores, (_, i) => gone.includes(i))]);
      const parts = [["measured", fall], ...sums].flatMap(([name, value], row) => {
        const [y, width] = [24 + 34 * row, (75 * Math.abs(value)) / most];
        const x = 255 - (value < 0 ? width : 0);
        const fill = row ? "var(--below)" : "var(--above)";
        const bar = shape("rect", { x, y: y - 14, width, height: 18, fill });
        return [text(0, y, name), bar, text(398, y, signed(value), { "text-anchor": "end" })];
      });
      const axis = path([[255, 4], [255, 34 * (maps.length + 1)]], { stroke: "currentColor" });
      const name = "By how much the logit falls, and what the scores add up to";
      picture.replaceChildren(drawing(34 * (maps.length + 1) + 6, name, ...parts, axis));
      const list = sums.map(([name, value]) => `${name} ${signed(value)}`).join(", ");
      said.textContent = `“${left}”: the logit falls by ${signed(fall)}. Added scores: ${list}.`;
    }
    update();
  }

  root.append(controls, result);
  ({ product, removal })[root.dataset.kind]();
  root.classList.add("ready");
})();
