// A photo and what each of the chosen models says of it.

import { classify } from "./classify.js";
import { make } from "./elements.js";
import { inWords } from "./server.js";
import { inBytes, inMs, inPercent } from "./units.js";

const PREVIEW_PX = 240_000;
const STAGES_IN_WORDS = 4;

/** A queue of jobs, of which at most `limit` run at once. */
export class Queue {
  #waiting = [];
  #running = 0;

  constructor(limit) {
    this.limit = limit;
  }

  add(run) {
    this.#waiting.push(run);
    this.#next();
  }

  async #next() {
    if (this.#running >= this.limit || !this.#waiting.length) return;
    this.#running++;
    try {
      await this.#waiting.shift()();
    } finally {
      this.#running--;
      this.#next();
    }
  }
}

const previews = new Queue(2);

export class Card {
  /**
   * @param file of the photo.
   * @param onChange called with the card when all its models have answered or failed, and when one is asked again.
   */
  constructor(file, onChange) {
    this.file = file;
    this.name = file.name || "pasted picture";
    this.answers = []; // by model: what `classify` gives, {failure} or null while it is asked
    this.#onChange = onChange;
    const name = make("h3", { class: "clip", title: this.name }, this.name);
    const head = make("div", { class: "row" }, name, this.#badge, make("span", { class: "hint" }, inBytes(file.size)));
    const body = make("div", { class: "said" }, head, this.#pair);
    this.element = make("li", {}, make("article", { class: "panel card" }, this.#picture, body));
  }

  #onChange;
  #badge = make("span", { class: "badge", hidden: "" });
  #pair = make("div", { class: "pair" });
  #picture = make("div", { class: "picture" });
  #ending = new AbortController();

  /** Whether every model has answered or failed. */
  get done() {
    return this.answers.length > 0 && this.answers.every(Boolean);
  }

  get failures() {
    return this.answers.flatMap((answer) => answer?.failure ?? []);
  }

  /** Whether both models put the same class first; null where they have not both answered. */
  get agrees() {
    const [one, other] = this.answers.map((answer) => answer?.predictions?.[0].id);
    return one === undefined || other === undefined ? null : one === other;
  }

  /** Show the photo itself, once the card is in the page. */
  showPicture() {
    previews.add(() => this.#picture.isConnected && showPreview(this.file, this.#picture));
  }

  /** Ask anew, from nothing; `queue` says when. */
  ask(models, queue, turn) {
    this.stop();
    this.#ending = new AbortController();
    this.answers = models.map(() => null);
    this.#badge.hidden = true;
    const views = models.map((_, index) => make("div", { class: `answer ${"ab"[index]}`, tabindex: -1 }));
    this.#pair.replaceChildren(...views);
    const asks = views.map((view, index) => () => this.#ask(models[index], queue, view, index));
    // Whoever comes second finds the server warm from the first: they take turns.
    for (const ask of turn % 2 ? asks.toReversed() : asks) ask();
  }

  /** Ask again what may have passed. */
  tryAgain() {
    for (const button of this.#pair.querySelectorAll("button")) button.click();
  }

  /** Ask no more, and let nothing of it come late. */
  stop() {
    this.#ending.abort();
  }

  #ask(model, queue, view, index) {
    const { signal } = this.#ending;
    const show = (...parts) => view.replaceChildren(make("p", { class: "who clip" }, model.label), ...parts);
    const showDoing = (text) => show(make("p", { class: "doing" }, text));
    const askAgain = () => {
      if (view.contains(document.activeElement)) view.focus({ preventScroll: true }); // the button goes
      this.answers[index] = null;
      this.#ask(model, queue, view, index);
      this.#onChange(this);
    };
    showDoing("waiting");
    queue.add(async () => {
      if (signal.aborted) return;
      showDoing("asking");
      const answer = await classify(this.file, model, { signal, onWait: showDoing }).catch((error) => ({
        failure: inWords(error, this.file),
      }));
      if (signal.aborted) return;
      this.answers[index] = answer;
      show(...(answer.failure ? failureParts(answer.failure, askAgain) : answerParts(answer)));
      this.#showAgreement();
      if (this.done) this.#onChange(this);
    });
  }

  #showAgreement() {
    this.#badge.hidden = this.agrees === null;
    this.#badge.dataset.agrees = this.agrees;
    this.#badge.textContent = this.agrees ? "same answer" : "other answer";
  }
}

function failureParts({ title, detail, isPassing }, askAgain) {
  const button = make("button", { type: "button" }, "Try again");
  button.addEventListener("click", askAgain);
  return [make("p", { class: "failure" }, title), make("p", { class: "hint" }, detail), ...(isPassing ? [button] : [])];
}

function answerParts({ predictions, ...times }) {
  const rows = predictions.map(({ label, score }) => {
    const bar = make("i", { "aria-hidden": "true", style: { width: `${score * 100}%` } });
    const name = make("span", { class: "clip", title: label }, label);
    return make("li", {}, name, make("span", {}, inPercent(score)), bar);
  });
  return [make("ol", { class: "classes" }, ...rows), ...(times.totalMs === null ? [] : stageParts(times))];
}

/** The shares of the stages as a bar, and the longest of them in words. */
function stageParts({ stages, totalMs, roundTripMs }) {
  const bar = stages.map(({ name, ms }) => {
    const style = { flexGrow: ms * 1000 }; // a sum below one would leave the bar's end empty
    return make("span", { "data-stage": name, title: `${name} ${inMs(ms)}`, style });
  });
  const longest = stages.toSorted((one, other) => other.ms - one.ms);
  const short = longest.splice(STAGES_IN_WORDS);
  const shortMs = short.reduce((sum, { ms }) => sum + ms, 0);
  const words = [
    make("b", {}, `${inMs(totalMs)} in the server`),
    ...longest.map(({ name, ms }) => make("span", { "data-stage": name, class: "swatch" }, `${name} ${inMs(ms)}`)),
    ...(short.length ? [make("span", {}, `${short.length} more ${inMs(shortMs)}`)] : []),
    make("span", {}, `${inMs(roundTripMs)} round trip`),
  ];
  return [make("div", { class: "bar", "aria-hidden": "true" }, ...bar), make("p", { class: "stages" }, ...words)];
}

/**
 * Show a file in a box, drawn small: a browser would keep all bytes and pixels of a photo for as long as it shows it.
 * The box says so where this browser does not know the format.
 */
async function showPreview(file, box) {
  const image = new Image();
  try {
    image.src = URL.createObjectURL(file);
    await new Promise((resolve, reject) => Object.assign(image, { onload: resolve, onerror: reject }));
    await image.decode().catch(() => {}); // not while the page waits; half a photo is drawn all the same
    const { naturalWidth, naturalHeight } = image;
    const scale = Math.min(1, Math.sqrt(PREVIEW_PX / (naturalWidth * naturalHeight)));
    const [width, height] = [naturalWidth, naturalHeight].map((side) => Math.ceil(side * scale));
    const canvas = make("canvas", { "aria-hidden": "true", width, height });
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, width, height);
    box.append(canvas);
  } catch {
    box.classList.add("none"); // the server knows formats that this browser does not
  } finally {
    URL.revokeObjectURL(image.src);
  }
}
