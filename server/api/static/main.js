// The page: its photos, the models that they are asked about, and how the server is.

import { Card, Queue } from "./card.js";
import { find, say } from "./elements.js";
import { showFacts } from "./facts.js";
import { showClaims, showFront } from "./front.js";
import { openIntake } from "./intake.js";
import { followMetrics } from "./live.js";
import { counterpart, knowsInWords, labelInWords, withLabels } from "./models.js";
import { Refusal, ask, keyInUse } from "./server.js";
import { inPercent } from "./units.js";

const AT_ONCE = 4;
const EVERY_MS = 5000; // a scrape costs the server milliseconds: often enough for a person
const LOADING_MS = 1000;

const queue = new Queue(AT_ONCE);
let cards = [];
let models = [];
let areStale = true; // the models: the server that told them may be another one by now
let isLooking = false;
let timer = null;
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
  askFor(fresh);
  if (find("answers").getBoundingClientRect().top > innerHeight * 0.8) find("answers").scrollIntoView();
}

function askFor(some) {
  const now = chosen();
  queue.limit = now.length === 2 ? 1 : AT_ONCE; // side by side, neither may wait for the other
  for (const card of some) card.ask(now, queue, turns++);
  showProgress();
}

function clear() {
  for (const card of cards) card.stop();
  cards = [];
  find("cards").replaceChildren();
  showProgress();
  find("choose").focus();
}

function onChange(card) {
  showProgress();
  if (!card.failures.some(({ code }) => code === "unknown_model")) return;
  areStale = true;
  look();
}

function showProgress() {
  const done = cards.filter(({ done }) => done);
  const failed = done.filter(({ failures }) => failures.length).length;
  const inFailed = failed ? `, ${failed} failed` : "";
  find("progress").textContent = `${done.length} of ${cards.length}${inFailed}`;
  find("again").hidden = document.querySelectorAll(".answer button").length < 2;
  if (done.length < cards.length || !cards.length) say("spoken", "");
  else {
    say("spoken", cards.length === 1 ? inShort(cards[0]) : `${cards.length} photos are done${inFailed}.`);
    look(); // so that the live figures have these photos at once
  }
  if (models.length) showFacts(find("facts"), chosen(), cards);
}

function inShort({ name, answers }) {
  const texts = answers.map(({ predictions, failure }) =>
    failure ? failure.message : `${labelInWords(predictions[0].label)}, ${inPercent(predictions[0].score)}`,
  );
  return `${name}: ${answers[0].failure ? texts[0] : texts.join("; beside it ")}`;
}

function showModels() {
  const [model, beside] = chosen();
  find("about-name").textContent = beside ? "Side by side" : models.length > 1 ? "Model" : `Model ${model.label}`;
  find("knows").textContent = knowsInWords(model);
  showClaims(find("claims"), chosen());
  showFront(find("front"), chosen());
  const query = model === models[0] ? "" : `?model=${encodeURIComponent(model.name)}`;
  const headers = { ...model.headers, ...(keyInUse() && { "X-API-Key": "KEY" }) };
  const options = Object.entries(headers).map(([name, value]) => `-H '${name}: ${value}' `);
  const address = new URL(model.num_classes ? "classify" : "embed", document.baseURI).href;
  find("curl").textContent = `curl --data-binary @photo.jpg ${options.join("")}'${address}${query}'`;
}

/** Fill a `select`; its first option is chosen where its value is none of them any more. */
function fillSelect(select, labels, value = select.value) {
  select.replaceChildren(...labels.map((label) => new Option(label || "nothing", label)));
  select.value = value;
  if (select.selectedIndex < 0) select.selectedIndex = 0;
  select.disabled = false;
}

/**
 * Read which models there are: at first the default one, which is first, is chosen, and its twin; later what is still
 * served stays. False where there are none yet.
 */
async function loadModels() {
  const { body } = await ask("v1/models");
  if (!body.models.length) return false;
  const before = chosen();
  models = withLabels(body.models);
  areStale = false;
  const labels = models.map(({ label }) => label);
  const gone = before.map(({ label }) => label).filter((label) => !labels.includes(label));
  fillSelect(find("model"), labels);
  fillSelect(find("beside"), ["", ...labels], before.length ? undefined : counterpart(models[0], models)?.label);
  for (const choice of ["model-choice", "beside-choice"]) find(choice).hidden = models.length < 2;
  say("gone", gone.length ? `${gone.join(", ")}: not served any more.` : "");
  showModels();
  const versions = (some) => some.map(({ label, version }) => `${label} ${version}`).join();
  if (versions(before) !== versions(chosen())) askFor(cards);
  return true;
}

/** See how the server is, and again in a while for as long as the page is seen. */
async function look() {
  if (isLooking) return;
  isLooking = true;
  clearTimeout(timer);
  try {
    if (areStale && !(await loadModels())) showState("loading", "models are loading");
    else {
      await followMetrics();
      showState("ready", "ready");
    }
  } catch (error) {
    if (!(error instanceof Refusal)) reportError(error);
    areStale = true; // another process may serve other models
    showState("gone", error.status ? `server answers ${error.status}` : "server does not answer");
  }
  isLooking = false;
  if (!document.hidden) timer = setTimeout(look, areStale ? LOADING_MS : EVERY_MS);
}

function showState(state, text) {
  find("state").dataset.state = state;
  say("state", text);
}

openIntake(take);
find("clear").addEventListener("click", clear);
find("again").addEventListener("click", () => {
  find("answers-name").focus(); // the button goes
  for (const button of document.querySelectorAll(".answer button")) button.click();
});
for (const name of ["model", "beside"]) {
  find(name).addEventListener("change", () => {
    say("gone", "");
    showModels();
    askFor(cards);
  });
}
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});
look();
