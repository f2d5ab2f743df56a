
// The live page of `argbeam serve`: a sentence of one's own, and what would come after other tokens.
// The search that is shown. One that fails changes nothing.
const question = { line: "", gold: "" };
const asked = { word_ordering: ["The words of a sentence, in any order", "The right order, if you know it"],
  parsing: ["A sentence", "Its tree, if you know it: word/head/label ..."],
  recommendation: ["Items, oldest first", "The next item, if you know it"] }[data.runs[0].task] ||
  ["A text", "The right output, if you know it"];
const form = make("form", { class: "row", id: "ask" },
  make("input", { id: "line", required: "", placeholder: asked[0], "aria-label": asked[0], dir: "auto", autocomplete: "off" }),
  make("input", { id: "gold", placeholder: asked[1], "aria-label": asked[1], dir: "auto", autocomplete: "off" }),
  make("label", { for: "beam" }, "beam"), make("input", { id: "beam", type: "number", min: 1, max: 100, value: data.beam }),
  make("button", {}, "search"));
const said = make("p", { id: "said", role: "status" });
document.querySelector("header").append(form, make("p", { id: "forced", dir: "auto" }), said);
for (const name of ["previous", "next", "place"]) byId(name).hidden = true;
document.querySelector("nav").hidden = byId("decoding").parentNode.hidden = true;
byId("facts").textContent = `${data.runs[0].system} (${data.runs[0].run}): what its beam search does with a sentence of yours`;
byId("line").focus();

async function ask(address, body) {
  try {
    const answer = await fetch(address, { method: "POST", headers: { "content-type": "application/json" },
      body: JSON.stringify(body) });
    const found = await answer.json();
    said.textContent = answer.ok ? "" : found.error;
    return answer.ok ? found : null;
  } catch (error) {
    said.textContent = "The server does not answer.";
    return null;
  }
}

async function searchFor(line, gold, prefix) {
  const found = await ask("/inspect", { line, gold, prefix, beam: Number(byId("beam").value) || 0 });
  if (!found) return;
  Object.assign(question, { line, gold });
  data = { ...found, live: true };
  const again = make("button", { type: "button" }, "search without it");
  again.addEventListener("click", () => searchFor(line, gold, []));
  byId("forced").replaceChildren(...(prefix.length ? ["forced: ", prefix.join(" "), " ", again] : []));
  byId("facts").textContent = `beam ${data.beam}: ${data.runs[0].system} (${data.runs[0].run})`;
  byId("decoding").parentNode.hidden = !gold;
  select();
  document.body.dataset.searched = String(1 + Number(document.body.dataset.searched || 0));
}

// The tokens that follow a hypothesis, each with a button that forces it.
async function afterChoice(words) {
  const chosen = state.node, found = await ask("/next", { line: question.line, prefix: words });
  if (!found || state.node !== chosen) return;
  const rows = found.tokens.map(({ token, score, probability, valid }) => {
    const force = make("button", { type: "button", ...(valid ? {} : { disabled: "" }) }, valid ? "force" : "forbidden");
    force.addEventListener("click", () => searchFor(question.line, question.gold, [...words, token]));
    return make("tr", {}, make("td", { dir: "auto" }, token), make("td", {}, number(score)),
      make("td", {}, percent(probability, 1)), make("td", {}, force));
  });
  byId("node").append(make("table", { id: "next-tokens" }, make("tr", {}, make("th", {}, "next token"), make("th", {}, "score"),
    make("th", {}, "probability"), make("th", {}, "")), ...rows));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  searchFor(byId("line").value, byId("gold").value, []);
});
