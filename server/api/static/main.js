// The page: puts its parts together.

import { Card, Queue } from "./card.js";
import { showComparison } from "./comparison.js";
import { claimOf, showFront } from "./front.js";
import { openIntake } from "./intake.js";
import { counterpart, factsOf, fillSelect, knowsInWords, readModels } from "./models.js";
import { Refusal, addressOf, ask, jsonOf, keyInUse } from "./server.js";
import { startStrip } from "./live.js";
import { inPercent } from "./units.js";

const AT_ONCE = 4;
const LOADING_MS = 1000;

const find = (id) => document.getElementById(id);
const queue = new Queue(AT_ONCE);
const cards = [];
let models = [];
let reading = null;
let turns = 0;

function chosen() {
  const by = (select) => models.find(({ label }) => label === select.value);
  const [model, beside] = [by(find("model")), by(find("beside"))];
  return model ? [model, ...(beside && beside !== model ? [beside] : [])] : [];
}

/** Take files in: a card for each, asked in order. */
function take(files) {
  if (!files.length) return;
  const fresh = files.map((file) => new Card(file, onChange));
  cards.unshift(...fresh);
  find("cards").prepend(...fresh.map(({ element }) => element));
  for (const card of fresh) card.showPicture();
  find("answers").hidden = false;
  document.body.classList.add("busy");
  if (models.length) askFor(fresh);
  showProgress();
  if (find("answers").getBoundingClientRect().top > innerHeight * 0.8) find("answers").scrollIntoView();
}

function askFor(some) {
  const now = chosen();
  queue.most = now.length === 2 ? 1 : AT_ONCE; // side by side, neither may wait for the other
  for (const card of some) card.ask(now, queue, turns++);
}

function askAllAgain() {
  queue.empty();
  askFor(cards);
  showProgress();
}

function clear() {
  queue.empty();
  for (const card of cards) card.stop();
  cards.length = 0;
  find("cards").replaceChildren();
  find("answers").hidden = true;
  document.body.classList.remove("busy");
  showProgress();
  find("choose").focus();
}

function onChange(card) {
  showProgress();
  if (!card.done) return;
  if (card.answers.some(({ failure }) => failure?.code === "unknown_model")) readAgain();
  const left = cards.filter(({ done }) => !done).length;
  if (cards.length === 1) say(inShort(card));
  else if (!left) say(`${cards.length} photos are done${failed().length ? `, ${failed().length} failed` : ""}.`);
}

function inShort({ name, answers }) {
  const [first] = answers;
  if (first.failure) return `${name}: ${first.failure.title}`;
  const texts = answers.map(({ predictions, failure }) =>
    failure ? failure.title : `${predictions[0].label}, ${inPercent(predictions[0].score)}`,
  );
  return `${name}: ${texts.join("; beside it ")}`;
}

function failed() {
  return cards.filter(({ done, answers }) => done && answers.some(({ failure }) => failure));
}

function say(text) {
  find("spoken").textContent = text;
}

function showProgress() {
  const parts = [`${cards.filter(({ done }) => done).length} of ${cards.length}`];
  if (failed().length) parts.push(`${failed().length} failed`);
  find("progress").textContent = parts.join(", ");
  find("again").hidden = failed().filter(({ answers }) => answers.some(({ failure }) => failure?.passing)).length < 2;
  if (models.length) showModels();
}

function showModels() {
  const now = chosen();
  const two = now.length === 2;
  find("about-name").textContent = two ? "Side by side" : "Model";
  find("facts").hidden = two;
  find("comparison").hidden = !two;
  find("knows").textContent = knowsInWords(now[0]);
  if (two) showComparison(find("comparison"), now, cards);
  else find("facts").replaceChildren(...factsOf(now[0]));
  find("claims").replaceChildren(...now.map(claimOf).filter(Boolean));
  showFront(find("front"), now);
  const query = now[0].said.default ? "" : `?model=${encodeURIComponent(now[0].name)}`;
  const headers = { ...now[0].headers, ...(keyInUse() ? { "X-API-Key": "KEY" } : {}) };
  const options = Object.entries(headers).map(([name, value]) => `-H '${name}: ${value}' `);
  find("curl").textContent = `curl --data-binary @photo.jpg ${options.join("")}'${addressOf("classify")}${query}'`;
}

function showState(state, text) {
  const place = find("state");
  if (place.textContent === text) return; // or it would be read out again
  place.dataset.state = state;
  place.textContent = text;
}

function showGone(status) {
  showState("gone", status ? `server answers ${status}` : "server does not answer");
}

async function modelsThere() {
  for (;;) {
    try {
      const found = readModels(await jsonOf(await ask("v1/models")));
      if (found.length) return found;
      showState("loading", "models are loading");
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      showGone(error.status);
    }
    await new Promise((resolve) => setTimeout(resolve, LOADING_MS));
  }
}

/** Read which models there are: at first the default is chosen, and its twin; later what is still served stays. */
async function loadModels() {
  const was = chosen();
  models = await modelsThere();
  const first = models.find(({ said }) => said.default) ?? models[0];
  const gone = was.filter(({ label }) => !models.some((model) => model.label === label));
  const stays = was.length && !gone.includes(was[0]);
  fillSelect(find("model"), models, { chosen: stays ? was[0].label : first.label });
  const beside = was.length ? null : (counterpart(first, models)?.label ?? "");
  fillSelect(find("beside"), models, { none: "nothing", chosen: beside });
  find("beside-choice").hidden = models.length < 2;
  find("gone").textContent = gone.length ? `${gone.map(({ label }) => label).join(", ")}: not served any more.` : "";
  showState("ready", "ready");
  const versions = (some) => some.map(({ label, said }) => `${label} ${said.version}`).join();
  if (versions(was) === versions(chosen())) showProgress();
  else askAllAgain();
}

function readAgain() {
  reading ??= loadModels().finally(() => (reading = null));
}

function onAnswer(status) {
  if (reading) return;
  const wasGone = find("state").dataset.state === "gone";
  if (status && status < 500) showState("ready", "ready");
  else showGone(status);
  if (wasGone && status === 200) readAgain(); // another process may serve other models
}

function onChoice() {
  find("gone").textContent = "";
  askAllAgain();
}

openIntake(take);
find("clear").addEventListener("click", clear);
find("again").addEventListener("click", () => {
  find("answers-name").focus(); // the button goes
  for (const card of cards) card.tryAgain();
});
find("model").addEventListener("change", onChoice);
find("beside").addEventListener("change", onChoice);
await loadModels();
startStrip(onAnswer);
