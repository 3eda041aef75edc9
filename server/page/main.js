// The page: puts its parts together.

import { Card } from "./card.js";
import { showComparison } from "./comparison.js";
import { openIntake } from "./intake.js";
import { Line } from "./line.js";
import { counterpart, factsOf, fillSelect, readModels } from "./models.js";
import { Refusal, addressOf, askJson } from "./server.js";
import { startStrip } from "./strip.js";
import { inPercent } from "./words.js";

const AT_ONCE = 4;
const LOADING_MS = 1000;

const find = (id) => document.getElementById(id);
const line = new Line(AT_ONCE);
const cards = [];
let models = [];

function chosen() {
  const by = (select) => models.find(({ label }) => label === select.value);
  const [model, beside] = [by(find("model")), by(find("beside"))];
  return model ? [model, ...(beside && beside !== model ? [beside] : [])] : [];
}

/** Take files in: a card for each, asked in order. */
function take(files) {
  if (!files.length) return;
  const fresh = files.map((file) => new Card(file, onDone));
  cards.unshift(...fresh);
  find("cards").prepend(...fresh.map(({ element }) => element));
  find("answers").hidden = false;
  document.body.classList.add("busy");
  if (models.length) askFor(fresh);
  showProgress();
  if (find("answers").getBoundingClientRect().top > innerHeight * 0.8) find("answers").scrollIntoView();
}

function askFor(some) {
  const now = chosen();
  line.most = now.length === 2 ? 1 : AT_ONCE; // side by side, neither may wait for the other
  some.forEach((card, place) => card.ask(now, line, place));
}

function askAllAgain() {
  line.empty();
  askFor(cards);
  showProgress();
}

function clear() {
  line.empty();
  for (const card of cards) card.stop();
  cards.length = 0;
  find("cards").replaceChildren();
  find("answers").hidden = true;
  document.body.classList.remove("busy");
  showProgress();
  find("choose").focus();
}

function onDone(card) {
  showProgress();
  const left = cards.filter(({ done }) => !done).length;
  if (cards.length === 1) say(inShort(card));
  else if (!left) say(`${cards.length} photos are done.`);
}

function inShort({ name, answers }) {
  const [first] = answers;
  if (first.failure) return `${name}: ${first.failure.title}`;
  const texts = answers.map(({ predictions, failure }) =>
    failure ? failure.title : `${predictions[0].label}, ${inPercent(predictions[0].score)}`,
  );
  return `${name}: ${texts.join("; beside it ")}`;
}

function say(text) {
  find("spoken").textContent = text;
}

function showProgress() {
  const done = cards.filter((card) => card.done);
  const failed = done.filter(({ answers }) => answers.some(({ failure }) => failure)).length;
  const parts = [`${done.length} of ${cards.length}`];
  if (failed) parts.push(`${failed} failed`);
  find("progress").textContent = parts.join(", ");
  if (models.length) showModels();
}

function showModels() {
  const now = chosen();
  const two = now.length === 2;
  find("about-name").textContent = two ? "Side by side" : "Model";
  find("facts").hidden = two;
  find("comparison").hidden = !two;
  if (two) showComparison(find("comparison"), now, cards);
  else find("facts").replaceChildren(...factsOf(now[0]));
  const query = now[0].said.default ? "" : `?model=${encodeURIComponent(now[0].name)}`;
  find("curl").textContent = `curl --data-binary @photo.jpg \\\n  '${addressOf("classify")}${query}'`;
}

function showState(state, text) {
  const place = find("state");
  if (place.dataset.state === state) return;
  place.dataset.state = state;
  place.textContent = text;
}

async function loadModels() {
  for (;;) {
    try {
      models = readModels(await askJson("v1/models"));
      if (models.length) break;
      showState("loading", "models are loading");
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      showState("gone", "server does not answer");
    }
    await new Promise((resolve) => setTimeout(resolve, LOADING_MS));
  }
  const first = models.find(({ said }) => said.default) ?? models[0];
  fillSelect(find("model"), models, { chosen: first.label });
  fillSelect(find("beside"), models, { none: "nothing", chosen: counterpart(first, models)?.label ?? "" });
  find("beside-choice").hidden = models.length < 2;
  showState("ready", "ready");
  askAllAgain();
}

openIntake(take);
find("clear").addEventListener("click", clear);
find("model").addEventListener("change", askAllAgain);
find("beside").addEventListener("change", askAllAgain);
await loadModels();
startStrip((there) => (there ? showState("ready", "ready") : showState("gone", "server does not answer")));
