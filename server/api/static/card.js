// A photo and what each of the chosen models says of it.

import { classify } from "./classify.js";
import { make } from "./elements.js";
import { labelInWords } from "./models.js";
import { inBytes, inMs, inPercent } from "./units.js";

const PREVIEW_PX = 240_000;
const STAGES_IN_WORDS = 4;

/** A queue of async functions, of which at most `limit` run at once. */
export class Queue {
  #waiting = [];
  #running = 0;

  constructor(limit) {
    this.limit = limit;
  }

  async add(run) {
    this.#waiting.push(run);
    while (this.#running < this.limit && this.#waiting.length) {
      this.#running++;
      await this.#waiting.shift()().catch(reportError);
      this.#running--;
    }
  }
}

const previews = new Queue(2);

export class Card {
  #picture = make("div.picture");
  #badge = make("span.badge");
  #pair = make("div.pair");
  #ending = new AbortController();
  #onChange;

  /**
   * @param file of the photo.
   * @param onChange called with the card when all its models have answered or failed, and when one is asked again.
   */
  constructor(file, onChange) {
    this.file = file;
    this.name = file.name || "pasted picture";
    this.answers = []; // by model: what `classify` gives, {failure}, or null while it is asked
    this.#onChange = onChange;
    const name = make("h3.clip", this.name, { title: this.name });
    const head = make("div.row.tight", [name, this.#badge, make("span.hint.last", inBytes(file.size))]);
    this.element = make("li.panel.card", [this.#picture, make("div.column", [head, this.#pair])]);
  }

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
    previews.add(async () => this.element.isConnected && showPreview(this.file, this.#picture));
  }

  /** Ask anew, from nothing; `queue` says when. */
  ask(models, queue, turn) {
    this.stop();
    this.#ending = new AbortController();
    this.answers = models.map(() => null);
    this.#badge.textContent = "";
    this.#pair.replaceChildren(...models.map(() => make("div.answer", [], { tabindex: -1 })));
    const asks = models.map((model, place) => () => this.#ask(model, queue, place));
    // Whoever comes second finds the server warm from the first: they take turns.
    for (const ask of turn % 2 ? asks.toReversed() : asks) ask();
  }

  /** Ask no more, and let nothing of it come late. */
  stop() {
    this.#ending.abort();
  }

  #ask(model, queue, place) {
    const { signal } = this.#ending;
    const view = this.#pair.children[place];
    const show = (...parts) => view.replaceChildren(make("p.who.clip", model.label), ...parts);
    const showDoing = (text) => show(make("p.doing", text));
    const askAgain = () => {
      if (view.contains(document.activeElement)) view.focus({ preventScroll: true }); // the button goes
      this.answers[place] = null;
      this.#ask(model, queue, place);
      this.#onChange(this);
    };
    showDoing("waiting");
    queue.add(async () => {
      if (signal.aborted) return;
      showDoing("asking");
      const answer = await classify(this.file, model, { signal, onWait: showDoing }).catch((failure) => ({ failure }));
      if (signal.aborted) return;
      this.answers[place] = answer;
      show(...(answer.failure ? failureParts(answer.failure, askAgain) : answerParts(answer)));
      if (this.agrees !== null) this.#badge.textContent = this.agrees ? "same answer" : "other answer";
      this.#badge.classList.toggle("other", this.agrees === false);
      if (this.done) this.#onChange(this);
    });
  }
}

function failureParts({ isPassing, message, detail }, askAgain) {
  const button = make("button", "Try again", { type: "button" });
  button.addEventListener("click", askAgain);
  return [make("p.failure", message), make("p.hint", detail ?? "The page failed."), ...(isPassing ? [button] : [])];
}

function answerParts({ predictions, sure, ...times }) {
  const doubt = "The best score is below the model's threshold of confidence.";
  const rows = predictions.map(({ label, score }) => {
    const bar = make("i", [], { style: { backgroundSize: `max(2px, ${score * 100}%)` } });
    const words = labelInWords(label);
    return make("li", [make("span.clip", words, { title: words }), make("span", inPercent(score)), bar]);
  });
  const hint = sure ? [] : [make("p.hint.unsure", "not sure", { title: doubt })];
  return [make("ol.classes", rows), ...hint, ...(times.totalMs === null ? [] : stageParts(times))];
}

/** The shares of the stages as a bar, and the longest of them in words. */
function stageParts({ stages, totalMs, roundTripMs }) {
  const bar = stages.map(({ name, ms }) => {
    const style = { flexGrow: ms * 1000 }; // a sum below one would leave the bar's end empty
    return make("span", [], { "data-stage": name, title: `${name} ${inMs(ms)}`, style });
  });
  const longest = stages.toSorted((one, other) => other.ms - one.ms);
  const short = longest.splice(STAGES_IN_WORDS);
  const shortMs = short.reduce((sum, { ms }) => sum + ms, 0);
  const words = [
    make("b", `${inMs(totalMs)} in the server`),
    ...longest.map(({ name, ms }) => make("span.swatch", `${name} ${inMs(ms)}`, { "data-stage": name })),
    ...(short.length ? [make("span", `${short.length} more ${inMs(shortMs)}`)] : []),
    make("span", `${inMs(roundTripMs)} round trip`),
  ];
  return [make("div.bar", bar, { "aria-hidden": "true" }), make("p.hint.row.stages", words)];
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
    const scale = Math.min(1, Math.sqrt(PREVIEW_PX / (image.naturalWidth * image.naturalHeight)));
    const [width, height] = [image.naturalWidth, image.naturalHeight].map((side) => Math.ceil(side * scale));
    const canvas = make("canvas", [], { "aria-hidden": "true", width, height });
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
