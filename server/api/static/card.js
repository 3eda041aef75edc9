// A photo and what one model says of it, or two.

import { classify } from "./classify.js";
import { make } from "./elements.js";
import { inWords, waitInWords } from "./server.js";
import { showStages } from "./stages.js";
import { inBytes, inPercent } from "./units.js";

const SHORT_SIDE_PX = 400;
const LONGEST = 2; // times the short side: more of a panorama is not seen

/** A queue of jobs, of which so many run at once. */
export class Queue {
  #waiting = [];
  #running = 0;

  constructor(most) {
    this.most = most;
  }

  /** Add a job; `run` is called when its turn comes, and must not throw. */
  add(run) {
    this.#waiting.push(run);
    this.#next();
  }

  /** Forget what has not begun. */
  empty() {
    this.#waiting.length = 0;
  }

  async #next() {
    if (this.#running >= this.most || !this.#waiting.length) return;
    this.#running++;
    try {
      await this.#waiting.shift()();
    } finally {
      this.#running--;
      this.#next();
    }
  }
}

const drawing = new Queue(2);

export class Card {
  /**
   * @param file of the photo.
   * @param onChange called with the card when all its models have answered or failed, and when one is asked again.
   */
  constructor(file, onChange) {
    this.file = file;
    this.name = file.name || "pasted picture";
    this.answers = []; // by model: what `classify` gives, {failure} or null while it is asked
    this.element = document.getElementById("card").content.firstElementChild.cloneNode(true);
    this.#onChange = onChange;
    const heading = this.element.querySelector("h3");
    heading.textContent = heading.title = this.name;
    this.element.querySelector(".size").textContent = inBytes(file.size);
  }

  #onChange;
  #ending = new AbortController();
  #views = [];

  /** Whether every model has answered or failed. */
  get done() {
    return this.answers.length > 0 && this.answers.every(Boolean);
  }

  /** Whether both models put the same class first; null where they have not both answered. */
  get agrees() {
    const [one, other] = this.answers.map((answer) => answer?.predictions?.[0]);
    return this.answers.length === 2 && one && other ? one.id === other.id : null;
  }

  /** Show the photo itself, once the card is in the page. */
  showPicture() {
    const box = this.element.querySelector(".picture");
    drawing.add(() => (box.isConnected ? draw(this.file, box) : undefined));
  }

  /** Ask anew, from nothing; `queue` says when. */
  ask(models, queue, order) {
    this.stop();
    this.#ending = new AbortController();
    this.answers = models.map(() => null);
    this.#views = models.map((_, index) => this.#newView(models, index, queue));
    this.element.querySelector(".pair").replaceChildren(...this.#views);
    this.element.querySelector(".badge").hidden = true;
    const indices = models.map((_, index) => index);
    // Whoever comes second finds the server warm from the first: they take turns.
    for (const index of order % 2 ? indices.reverse() : indices) this.#enqueue(models, index, queue);
  }

  /** Ask again what may have passed. */
  tryAgain() {
    for (const button of this.element.querySelectorAll(".failed:not([hidden]) button:not([hidden])")) button.click();
  }

  /** Ask no more, and let nothing of it come late. */
  stop() {
    this.#ending.abort();
  }

  #enqueue(models, index, queue) {
    const signal = this.#ending.signal;
    queue.add(() => (signal.aborted ? undefined : this.#run(models, index, signal)));
  }

  async #run(models, index, signal) {
    const view = this.#views[index];
    const doing = view.querySelector(".doing");
    doing.textContent = "asking";
    let answer;
    try {
      answer = await classify(this.file, models[index], {
        signal,
        onWait: (wait) => (doing.textContent = waitInWords(wait)),
      });
    } catch (error) {
      if (signal.aborted) return;
      answer = { failure: inWords(error, this.file) };
    }
    if (signal.aborted) return;
    this.answers[index] = answer;
    doing.hidden = true;
    if (answer.failure) this.#showFailure(view, answer.failure);
    else this.#showAnswer(view, answer);
    this.#showAgreement();
    if (this.done) this.#onChange(this);
  }

  #newView(models, index, queue) {
    const view = document.getElementById("answer").content.firstElementChild.cloneNode(true);
    view.classList.add("ab"[index]);
    view.querySelector(".who").textContent = models[index].label;
    view.tabIndex = -1;
    view.querySelector("button").addEventListener("click", ({ target }) => {
      this.answers[index] = null;
      if (target === document.activeElement) view.focus({ preventScroll: true }); // the button goes
      view.querySelector(".failed").hidden = true;
      const doing = view.querySelector(".doing");
      doing.hidden = false;
      doing.textContent = "waiting";
      this.#enqueue(models, index, queue);
      this.#onChange(this);
    });
    return view;
  }

  #showAnswer(view, answer) {
    const rows = answer.predictions.map(({ label, score }) => {
      const name = make("span", { className: "label", textContent: label, title: label });
      const share = make("span", { className: "share", textContent: inPercent(score) });
      const bar = make("i", { "aria-hidden": "true" });
      bar.style.width = `${score * 100}%`;
      return make("li", {}, name, share, bar);
    });
    view.querySelector(".classes").replaceChildren(...rows);
    showStages(view.querySelector(".stages"), answer);
  }

  #showFailure(view, { title, detail, passing }) {
    const box = view.querySelector(".failed");
    box.hidden = false;
    box.querySelector(".failure").textContent = title;
    box.querySelector(".hint").textContent = detail;
    box.querySelector("button").hidden = !passing;
  }

  #showAgreement() {
    const badge = this.element.querySelector(".badge");
    badge.hidden = this.agrees === null;
    badge.dataset.agrees = this.agrees;
    badge.textContent = this.agrees ? "same answer" : "other answer";
  }
}

/**
 * Show a file in a box, drawn small: a browser would keep all bytes and pixels of a photo for as long as it shows it.
 * The box says so where this browser does not know the format.
 */
async function draw(file, box) {
  const url = URL.createObjectURL(file);
  const image = new Image();
  try {
    await new Promise((resolve, reject) => Object.assign(image, { onload: resolve, onerror: reject, src: url }));
    await image.decode().catch(() => {}); // not while the page waits; half a photo is drawn all the same
    box.append(small(image));
  } catch {
    box.classList.add("none"); // the server knows formats that this browser does not
  } finally {
    URL.revokeObjectURL(url);
  }
}

function small(image) {
  const { naturalWidth: width, naturalHeight: height } = image;
  const short = Math.min(width, height);
  const [seenWidth, seenHeight] = [Math.min(width, LONGEST * short), Math.min(height, LONGEST * short)];
  const scale = Math.min(1, SHORT_SIDE_PX / short);
  const [canvasWidth, canvasHeight] = [Math.round(seenWidth * scale), Math.round(seenHeight * scale)];
  const canvas = make("canvas", { "aria-hidden": "true", width: canvasWidth, height: canvasHeight });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  const [left, top] = [(width - seenWidth) / 2, (height - seenHeight) / 2];
  context.drawImage(image, left, top, seenWidth, seenHeight, 0, 0, canvas.width, canvas.height);
  return canvas;
}
