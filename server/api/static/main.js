// The page: puts its parts together.

import { Card, Queue } from "./card.js";
import { find } from "./elements.js";
import { showFacts } from "./facts.js";
import { claimOf, showFront } from "./front.js";
import { openIntake } from "./intake.js";
import { startStrip } from "./live.js";
import { counterpart, fillSelect, knowsInWords, readModels } from "./models.js";
import { Refusal, addressOf, ask, jsonOf, keyInUse, pause } from "./server.js";
import { inPercent } from "./units.js";

const AT_ONCE = 4;
const LOADING_MS = 1000;

const queue = new Queue(AT_ONCE);
let cards = [];
let models = [];
let reading = null;
let turns = 0;

/** The model that is chosen, and the one beside it where there is one. */
function chosen() {
  const labels = new Set([find("model").value, find("beside").value]);
  return [...labels].flatMap((label) => models.find((model) => model.label === label) ?? []);
}

/** Take files in: a card for each, asked in order. */
function take(files) {
  if (!files.length) return;
  const fresh = files.map((file) => new Card(file, onChange));
  cards = [...fresh, ...cards];
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
  queue.limit = now.length === 2 ? 1 : AT_ONCE; // side by side, neither may wait for the other
  for (const card of some) card.ask(now, queue, turns++);
}

function askAllAgain() {
  askFor(cards);
  showProgress();
}

function clear() {
  for (const card of cards) card.stop();
  cards = [];
  find("cards").replaceChildren();
  find("answers").hidden = true;
  document.body.classList.remove("busy");
  showProgress();
  find("choose").focus();
}

function onChange(card) {
  showProgress();
  if (!card.done) return;
  if (card.failures.some(({ code }) => code === "unknown_model")) readAgain();
  const spoken = find("spoken");
  if (cards.length === 1) spoken.textContent = inShort(card);
  else if (cards.every(({ done }) => done)) spoken.textContent = `${cards.length} photos are done${inFailed()}.`;
}

function inShort({ name, answers }) {
  const texts = answers.map(({ predictions, failure }) =>
    failure ? failure.title : `${predictions[0].label}, ${inPercent(predictions[0].score)}`,
  );
  return `${name}: ${answers[0].failure ? texts[0] : texts.join("; beside it ")}`;
}

function failed() {
  return cards.filter(({ done, failures }) => done && failures.length);
}

function inFailed() {
  return failed().length ? `, ${failed().length} failed` : "";
}

function showProgress() {
  find("progress").textContent = `${cards.filter(({ done }) => done).length} of ${cards.length}${inFailed()}`;
  find("again").hidden = failed().filter(({ failures }) => failures.some(({ isPassing }) => isPassing)).length < 2;
  if (models.length) showModels(chosen());
}

function showModels(now) {
  find("about-name").textContent = now.length === 2 ? "Side by side" : "Model";
  find("knows").textContent = knowsInWords(now[0]);
  find("facts").hidden = false;
  showFacts(find("facts"), now, cards);
  find("claims").replaceChildren(...now.map(claimOf).filter(Boolean));
  showFront(find("front"), now);
  const query = now[0] === models[0] ? "" : `?model=${encodeURIComponent(now[0].name)}`;
  const headers = { ...now[0].headers, ...(keyInUse() && { "X-API-Key": "KEY" }) };
  const options = Object.entries(headers).map(([name, value]) => `-H '${name}: ${value}' `);
  find("curl").textContent = `curl --data-binary @photo.jpg ${options.join("")}'${addressOf("classify")}${query}'`;
}

function showState(state, text = state) {
  if (find("state").textContent === text) return; // or it would be read out again
  find("state").dataset.state = state;
  find("state").textContent = text;
}

function showGone(status) {
  showState("gone", status ? `server answers ${status}` : "server does not answer");
}

async function modelsThere() {
  for (;;) {
    try {
      const there = readModels(await jsonOf(await ask("v1/models")));
      if (there.length) return there;
      showState("loading", "models are loading");
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      showGone(error.status);
    }
    await pause(LOADING_MS);
  }
}

/** Read which models there are: at first the default one, which is first, is chosen, and its twin; later what is
 * still served stays. */
async function loadModels() {
  const before = chosen();
  models = await modelsThere();
  const labels = models.map(({ label }) => label);
  const gone = before.map(({ label }) => label).filter((label) => !labels.includes(label));
  fillSelect(find("model"), labels, find("model").value);
  const beside = before.length ? find("beside").value : counterpart(models[0], models)?.label;
  fillSelect(find("beside"), ["", ...labels], beside);
  find("beside-choice").hidden = models.length < 2;
  find("gone").textContent = gone.length ? `${gone.join(", ")}: not served any more.` : "";
  showState("ready");
  const versions = (some) => some.map(({ label, said }) => `${label} ${said.version}`).join();
  if (versions(before) === versions(chosen())) showProgress();
  else askAllAgain();
}

function readAgain() {
  reading ??= loadModels().finally(() => (reading = null));
}

function onAnswer(status) {
  if (reading) return;
  const wasGone = find("state").dataset.state === "gone";
  if (status && status < 500) showState("ready");
  else showGone(status);
  if (wasGone && status === 200) readAgain(); // another process may serve other models
}

openIntake(take);
find("clear").addEventListener("click", clear);
find("again").addEventListener("click", () => {
  find("answers-name").focus(); // the button goes
  for (const card of cards) card.tryAgain();
});
for (const name of ["model", "beside"]) {
  find(name).addEventListener("change", () => {
    find("gone").textContent = "";
    askAllAgain();
  });
}
await loadModels();
startStrip(onAnswer);
