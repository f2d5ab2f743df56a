"use strict";
// The page of `argbeam inspect`. Texts of the data become text nodes, never markup. Only one sentence is drawn.
let data = JSON.parse(document.getElementById("data").textContent);
const byId = (name) => document.getElementById(name);
const ITEM = 28, COLUMN = 132, ROW = 34, WIDTH = 112, HEIGHT = 26, TOP = 46;
// `live` data come from a server: live.js then has a form, and what follows a chosen hypothesis.
const state = { view: "decoding", sentence: 0, place: 0, shown: [], step: 0, run: 0, node: null };

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

function draw(tag, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== "") element.textContent = text;
  return element;
}

const number = (value, unit = 1000) => (value === null || value === undefined ? "-" : String(Math.round(value * unit) / unit));
const short = (text, most) => ([...text].length > most ? [...text].slice(0, most - 1).join("") + "\u2026" : text);
const pen = document.createElement("canvas").getContext("2d");
pen.font = "12px system-ui, sans-serif"; // that of drawings
const lengthOf = (text) => pen.measureText(text).width;
const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "-");

// As much of a text as fits into a width.
function fitted(text, width) {
  let most = Math.min([...text].length, 40);
  while (most > 1 && lengthOf(short(text, most)) > width) most--;
  return short(text, most);
}

// The summary: how often and at which step gold is lost, by beam; a bar filters the sentences.

function showSummary() {
  const hasGold = data.runs.some((run) => run.with_gold);
  const where = data.split ? `split ${data.split}` : "lines";
  const count = data.sentences.length;
  byId("facts").textContent = `${count} ${count === 1 ? "sentence" : "sentences"}, ${where}, beam ${data.beam}: ` +
    data.runs.map((run) => `${run.system} (${run.run})`).join(" and ");
  byId("summary").hidden = !hasGold;
  const place = byId("summary").lastElementChild;
  for (const [index, run] of data.runs.entries()) {
    if (!run.with_gold) continue;
    const training = run.training;
    const rows = Object.entries(run.lost).map(([beam, found]) => make("tr", {}, make("td", {}, beam),
      make("td", {}, `${found.lost} of ${run.with_gold} (${percent(found.lost, run.with_gold)})`),
      make("td", {}, bars(index, beam, found.by_step))));
    place.append(make("section", {}, make("h2", {}, run.system), make("p", {},
      `${run.task.replaceAll("_", " ")}, ${run.model}, rule ${run.rule}, stop ${run.stop}. At beam ${data.beam}: ` +
      `${run.right} outputs are gold, ${run.search_errors} are search errors (gold has the higher score). ` +
      `Training search: beam ${training.beam}, ${training.policy}, margin ${training.margin}` +
      (training.margin_per_token ? ` + ${training.margin_per_token} per token` : "") +
      (training.own ? "." : " (not of this run's loss).")),
      make("table", {}, make("tr", {}, make("th", {}, "beam"), make("th", {}, "gold lost"),
        make("th", {}, "by step")), ...rows)));
  }
}

function bars(run, beam, counts) {
  const most = Math.max(1, ...counts), width = 12;
  const drawing = draw("svg", { class: "bars", width: Math.max(60, counts.length * width + 8), height: 58, role: "img" });
  counts.forEach((count, i) => {
    const height = (38 * count) / most;
    const bar = draw("rect", { x: i * width, y: 40 - height, width: width - 2, height: Math.max(height, count ? 1 : 0) });
    bar.append(draw("title", {}, `step ${i + 1}: ${count}`));
    if (Number(beam) === data.beam && count) {
      const choose = () => { state.step = i + 1; state.run = run; byId("which").value = "lost"; select(); };
      bar.style.cursor = "pointer";
      for (const [name, value] of [["tabindex", 0], ["role", "button"], ["aria-label", `step ${i + 1}: ${count} lost`]])
        bar.setAttribute(name, value);
      bar.addEventListener("click", choose);
      bar.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
    }
    drawing.append(bar);
    if (i === 0 || (i + 1) % 5 === 0) drawing.append(draw("text", { x: i * width, y: 54, class: "dim" }, i + 1));
  });
  return drawing;
}

// The list of sentences: only the rows in sight are in the document.

const tests = {
  all: () => true,
  lost: (runs) => (state.step ? runs[state.run].lost === state.step : runs.some((run) => run.lost > 0)),
  kept: (runs) => runs.some((run) => run.gold.length && run.lost === 0),
  error: (runs) => runs.some((run) => run.search_error),
  wrong: (runs) => runs.some((run) => run.gold.length && !run.right),
};

function select() {
  const wanted = byId("filter").value.toLowerCase(), passes = tests[byId("which").value];
  if (byId("which").value !== "lost") state.step = 0;
  state.shown = [];
  data.sentences.forEach((sentence, i) => {
    if (passes(sentence.runs) && (!wanted || (sentence.source + "\n" + sentence.gold).toLowerCase().includes(wanted)))
      state.shown.push(i);
  });
  const at = state.step ? `, lost at step ${state.step}` : "";
  byId("count").textContent = `${state.shown.length} of ${data.sentences.length}${at}`;
  byId("list").firstElementChild.style.height = `${state.shown.length * ITEM}px`;
  // The same sentence, or the next one that is left.
  const found = state.shown.findIndex((i) => i >= state.sentence);
  state.place = found >= 0 ? found : Math.max(0, state.shown.length - 1);
  show(state.place);
}

function fillList() {
  const list = byId("list"), inner = list.firstElementChild;
  const first = Math.max(0, Math.floor(list.scrollTop / ITEM) - 5);
  const last = Math.min(state.shown.length, first + Math.ceil(list.clientHeight / ITEM) + 10);
  const rows = [];
  for (let place = first; place < last; place++) {
    const i = state.shown[place], sentence = data.sentences[i];
    const lost = sentence.runs.map((run) => (!run.gold.length ? "" : run.lost ? `\u2717${run.lost}` : "\u2713")).join(" ");
    const told = sentence.runs.map((run) => (!run.gold.length ? "no gold" : run.lost ? `gold is lost at step ${run.lost}` :
      "gold stays on the beam")).join("; ");
    const row = make("div", { class: "item", role: "option", id: `item${place}`,
      "aria-selected": place === state.place, dir: "auto" }, make("b", { title: told }, `${i + 1} ${lost}`), sentence.source);
    row.style.top = `${place * ITEM}px`;
    row.addEventListener("click", () => show(place));
    rows.push(row);
  }
  inner.replaceChildren(...rows);
  if (state.shown.length) list.setAttribute("aria-activedescendant", `item${state.place}`);
}

// One sentence: texts, a tree and outputs for every run.

function show(place) {
  if (place < 0 || (place >= state.shown.length && state.shown.length)) return;
  state.place = place;
  state.node = null;
  byId("node").replaceChildren();
  byId("bar").hidden = byId("legend").hidden = !state.shown.length;
  if (!state.shown.length) {
    byId("runs").replaceChildren();
    byId("sentence").replaceChildren(data.sentences.length ? "No sentence is selected: change the filter." : "");
    fillList();
    return;
  }
  const i = (state.sentence = state.shown[place]), sentence = data.sentences[i], list = byId("list");
  if (place * ITEM < list.scrollTop || (place + 1) * ITEM > list.scrollTop + list.clientHeight)
    list.scrollTop = Math.max(0, place * ITEM - list.clientHeight / 2);
  fillList();
  history.replaceState(null, "", `#${i + 1}`);
  byId("place").textContent = `sentence ${i + 1}`;
  byId("previous").disabled = place === 0;
  byId("next").disabled = place === state.shown.length - 1;
  const line = (name, text) => make("div", { class: "text", dir: "auto" }, make("b", {}, name), " ", text);
  byId("sentence").replaceChildren(line("source", sentence.source), ...(sentence.gold ? [line("gold", sentence.gold)] : []));
  const hasTraining = sentence.runs.some((run) => run.training);
  byId("training").disabled = !hasTraining;
  const view = hasTraining ? state.view : "decoding";
  for (const name of ["decoding", "training"]) byId(name).setAttribute("aria-pressed", view === name);
  byId("runs").className = data.runs.length > 1 ? "two" : "";
  byId("runs").replaceChildren(...sentence.runs.map((run, r) => panel(run, data.runs[r], view, r)));
}

function panel(run, about, view, r) {
  const shown = run[view];
  const tree = make("div", { class: "tree", tabindex: 0, "aria-label": `tree of ${about.system}` });
  if (shown) tree.append(drawTree(shown, r));
  const outputs = run.outputs.map(([text, score, finished], i) => make("tr", {}, make("td", {}, i + 1),
    make("td", {}, number(score)), make("td", { dir: "auto" }, text || "(empty)", finished ? "" : " (unfinished)")));
  if (!outputs.length) outputs.push(make("tr", {}, make("td", {}), make("td", {}), make("td", {}, "none: a dead end")));
  const gold = run.gold_score === null ? [] :
    [make("tr", {}, make("td", {}, "gold"), make("td", {}, number(run.gold_score)), make("td", {}, verdict(run)))];
  return make("section", {}, ...(data.runs.length > 1 ? [make("h2", {}, about.system)] : []),
    make("p", {}, story(run, view)), tree,
    make("details", { open: "" }, make("summary", {}, `outputs at beam ${data.beam}`), make("table", {},
      make("tr", {}, make("th", {}, ""), make("th", {}, "score"), make("th", {}, "output")), ...outputs, ...gold)),
    ...(run.attention ? [attention("output", run, run.output), attention("gold", run, run.gold)] : []),
    ...(data.attention && !about.attends ? [make("p", { class: "note" }, `This model (${about.model}) has no attention to show.`)] : []));
}

// Attention: a row for each token, a column for each token of the source; the darker, the more.
function attention(name, run, tokens) {
  const rows = run.attention[name], side = 18, left = 110, top = 74, sources = run.source;
  const most = Math.max(1, ...rows.flat());
  if (!rows.length) return "";
  const drawing = draw("svg", { width: left + sources.length * side + 60, height: top + rows.length * side + 6 });
  sources.forEach((token, s) => drawing.append(draw("text", { class: "dim",
    transform: `translate(${left + s * side + 12} ${top - 6}) rotate(-50)` }, short(data.tokens[token], 10))));
  rows.forEach((weights, t) => {
    drawing.append(draw("text", { x: left - 6, y: top + t * side + 13, "text-anchor": "end" }, short(data.tokens[tokens[t]], 12)));
    weights.forEach((weight, s) => {
      const cell = draw("rect", { class: "weight", x: left + s * side, y: top + t * side, width: side - 1, height: side - 1,
        "fill-opacity": weight / most });
      cell.append(draw("title", {}, `${data.tokens[sources[s]]}: ${weight} %`));
      drawing.append(cell);
    });
  });
  return make("details", {}, make("summary", {}, `attention: ${name}`), make("div", { class: "tree" }, drawing));
}

function verdict(run) {
  if (run.right) return "the output is gold";
  return run.search_error ? "search error: gold has a higher score than the output" :
    "model error: the output has the higher score";
}

function story(run, view) {
  if (!run.gold.length) return run.dead ? "The search met a dead end." : "";
  if (run.forbidden) return `The constraint forbids gold's token at step ${run.forbidden}: no search can find gold.`;
  if (view === "training" && run.training) {
    const at = (run.training.violation || []).flatMap((violated, t) => (violated ? [t + 1] : []));
    const steps = at.length > 1 ? `steps ${at.slice(0, -1).join(", ")} and ${at.at(-1)}` : `step ${at[0]}`;
    return at.length ? `Gold's margin is violated at ${steps}.` : "Gold's margin is never violated.";
  }
  if (!run.lost) return "Gold stays on the beam.";
  const t = run.lost - 1, found = run.decoding;
  if (t >= found.parents.length) return `The search ended before gold did, after step ${t}.`;
  const rank = found.rank[t] ? `rank ${found.rank[t]}` : "far behind";
  const behind = found.margin[t] === null ? "" : `, ${number(-found.margin[t])} behind the last place`;
  return `Gold falls off the beam at step ${run.lost}: ${rank}${behind}.`;
}

function drawTree(view, r) {
  const most = Math.max(...view.parents.map((step) => step.length), 1), steps = view.parents.length;
  const drawing = draw("svg", { width: steps * COLUMN + 20, height: TOP + most * ROW + 8, "data-run": r });
  const x = (t) => 10 + t * COLUMN, y = (place) => TOP + place * ROW;
  const edges = draw("g"), nodes = draw("g");
  for (let t = 0; t < steps; t++) {
    const gold = view.gold ? view.gold[t] : -1, violated = view.violation && view.violation[t];
    drawing.append(draw("text", { x: x(t), y: 16, class: "dim" }, `step ${t + 1}`));
    if (gold >= 0) {
      const rank = view.rank[t] ? `rank ${view.rank[t]}` : "far", margin = view.margin[t];
      const lead = margin === null ? "" : ` ${margin >= 0 ? "+" : "\u2212"}${Math.round(Math.abs(margin) * 100) / 100}`;
      drawing.append(draw("text", { x: x(t), y: 34, class: violated || "dg".includes(view.fates[t][gold]) ? "bad" : "dim" },
        `\u2605 ${rank}${lead}`));
    }
    if (violated && t + 1 < steps)
      edges.append(draw("line", { class: "restart", x1: x(t + 1) - 10, x2: x(t + 1) - 10, y1: 4, y2: TOP + most * ROW }));
    view.parents[t].forEach((parent, place) => {
      const isGold = place === gold, fate = view.fates[t][place], isRival = view.rival && view.rival[t] === place;
      if (t > 0 && parent >= 0) {
        const from = [x(t - 1) + WIDTH, y(parent) + HEIGHT / 2], to = [x(t), y(place) + HEIGHT / 2];
        edges.append(draw("path", { class: isGold ? "edge gold" : "edge",
          d: `M${from} C${from[0] + 12} ${from[1]} ${to[0] - 12} ${to[1]} ${to}` }));
      }
      const classes = ["node", fate, isGold ? "gold" : "", isRival ? "rival" : ""].filter(Boolean).join(" ");
      const node = draw("g", { class: classes, "data-step": t, "data-place": place });
      const mark = isGold ? "\u2605 " : isRival ? "\u25b2 " : { e: "\u25a0 ", f: "\u00d7 " }[fate] || "";
      const text = data.tokens[view.tokens[t][place]], score = number(view.scores[t][place], 100);
      const room = WIDTH - 14 - lengthOf(mark) - lengthOf(score);
      node.append(draw("rect", { x: x(t), y: y(place), width: WIDTH, height: HEIGHT }),
        draw("text", { x: x(t) + 5, y: y(place) + 17 }, mark + fitted(text, room)),
        draw("text", { x: x(t) + WIDTH - 4, y: y(place) + 17, "text-anchor": "end", class: "dim" }, score),
        draw("title", {}, text));
      node.addEventListener("click", () => choose(r, t, place));
      nodes.append(node);
    });
  }
  drawing.append(edges, nodes);
  return drawing;
}

// One hypothesis.

const fates = { k: "kept", d: "dropped: not among the best", e: "ended", g: "gold, off the beam",
  f: "forbidden: without the constraint it would be on the beam" };

function current() {
  const sentence = data.sentences[state.shown[state.place]];
  return (r) => sentence.runs[r][byId("training").getAttribute("aria-pressed") === "true" ? "training" : "decoding"];
}

function choose(r, t, place) {
  const view = current()(r);
  if (!view || t < 0 || t >= view.parents.length || place < 0 || place >= view.parents[t].length) return;
  state.node = { r, t, place };
  document.querySelectorAll(".node.chosen").forEach((node) => node.classList.remove("chosen"));
  const node = document.querySelector(`svg[data-run="${r}"] .node[data-step="${t}"][data-place="${place}"]`);
  node.classList.add("chosen");
  node.scrollIntoView({ block: "nearest", inline: "nearest" });
  const words = [];
  for (let s = t, p = place; s >= 0; p = view.parents[s][p], s--) words.unshift(data.tokens[view.tokens[s][p]]);
  const valid = view.valid[t][place], continued = t + 1 < view.parents.length && view.parents[t + 1].includes(place);
  const facts = [`step ${t + 1}, place ${place + 1}`, `score ${number(view.scores[t][place])}`, fates[view.fates[t][place]]];
  if (view.gold && view.gold[t] === place) facts.push("gold's prefix");
  if (view.rival && view.rival[t] === place) facts.push("the rival");
  if (view.fates[t][place] === "k" && t + 1 < view.parents.length && !continued) facts.push("nothing of it is kept at the next step");
  if (valid) facts.push(`${valid} valid successors, ${data.runs[r].vocabulary - valid} tokens forbidden`);
  byId("node").replaceChildren(make("h2", {}, "hypothesis"), make("div", { class: "text", dir: "auto" }, words.join(" ")),
    make("p", {}, facts.join("; ")));
  if (data.live && view.fates[t][place] !== "f") afterChoice(words);
}

function move(steps, places) {
  if (!state.shown.length) return;
  const focused = document.activeElement?.closest(".tree")?.querySelector("svg[data-run]");
  const at = state.node, r = focused ? Number(focused.dataset.run) : at ? at.r : 0;
  if (!at || at.r !== r) { choose(r, 0, 0); return; }
  const view = current()(at.r);
  if (steps > 0) {
    const child = at.t + 1 < view.parents.length ? view.parents[at.t + 1].indexOf(at.place) : -1;
    choose(at.r, at.t + 1, Math.max(0, child));
  } else if (steps < 0) choose(at.r, at.t - 1, view.parents[at.t][at.place]);
  else choose(at.r, at.t, at.place + places);
}

function changeView(name) { state.view = name; show(state.place); }

const keys = {
  j: () => show(state.place + 1), k: () => show(state.place - 1), n: () => show(state.place + 1), p: () => show(state.place - 1),
  v: () => changeView(state.view === "decoding" ? "training" : "decoding"), "/": () => byId("filter").focus(),
  ArrowRight: () => move(1, 0), ArrowLeft: () => move(-1, 0), ArrowDown: () => move(0, 1), ArrowUp: () => move(0, -1),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select")) { if (event.key === "Escape") event.target.blur(); return; }
  const inList = event.target.id === "list" && event.key.startsWith("Arrow");
  const action = inList ? { ArrowDown: keys.j, ArrowUp: keys.k }[event.key] : keys[event.key];
  if (action) { event.preventDefault(); action(); }
});
byId("list").addEventListener("scroll", fillList, { passive: true });
window.addEventListener("resize", fillList);
byId("filter").addEventListener("input", select);
byId("which").addEventListener("change", () => { state.step = 0; select(); });
byId("previous").addEventListener("click", () => show(state.place - 1));
byId("next").addEventListener("click", () => show(state.place + 1));
for (const name of ["decoding", "training"]) byId(name).addEventListener("click", () => changeView(name));
byId("help").lastElementChild.append(...[
  "\u2605 gold's prefix, thick path; dashed where it is not on the beam", "\u25b2 rival", "\u25a0 ended hypothesis",
  "\u00d7 forbidden by the constraint, on the beam without it", "dashed: dropped, not among the best", "dotted line: the search restarts from gold",
  "In the list: \u27175 gold is lost at step 5, \u2713 gold stays on the beam (the output may still be another)",
  "Above a step: gold's rank, and its score minus the rival's (training search) or the last place's (plain search)",
  "Keys: j k next and previous sentence, v view, / filter, arrows move through the tree, Tab to the next tree, Esc leaves a field",
].map((text) => make("div", {}, text)));
window.addEventListener("hashchange", () => {
  const place = state.shown.indexOf(Number(location.hash.slice(1)) - 1);
  if (place >= 0) show(place);
});
showSummary();
const wanted = Number(location.hash.slice(1)) - 1;
if (wanted > 0 && wanted < data.sentences.length) state.sentence = wanted;
select();
document.body.dataset.ready = "true";
