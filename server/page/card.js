// A photo and what one model says of it, or two.

import { classify } from "./classify.js";
import { showStages } from "./stages.js";
import { inBytes, inPercent, inWords, waitInWords } from "./words.js";

export class Card {
  /**
   * @param file of the photo.
   * @param onDone called with the card when all its models have answered or failed.
   */
  constructor(file, onDone) {
    this.file = file;
    this.name = file.name || "pasted picture";
    this.answers = []; // by model: {predictions, stages, roundTripMs}, {failure} or null while it is asked
    this.element = document.getElementById("card").content.firstElementChild.cloneNode(true);
    this.#onDone = onDone;
    const heading = this.element.querySelector("h3");
    heading.textContent = heading.title = this.name;
    this.element.querySelector(".size").textContent = inBytes(file.size);
    this.#showPicture();
  }

  #onDone;
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

  /** Ask anew, from nothing; `line` says when. */
  ask(models, line, order) {
    this.stop();
    this.#ending = new AbortController();
    this.answers = models.map(() => null);
    this.#views = models.map((model, place) => this.#newView(model, place, line));
    this.element.querySelector(".pair").replaceChildren(...this.#views);
    this.element.querySelector(".badge").hidden = true;
    const places = models.map((_, place) => place);
    // Whoever comes second finds the server warm from the first: they take turns.
    for (const place of order % 2 ? places.reverse() : places) this.#queue(models[place], place, line);
  }

  /** Ask no more, and let nothing of it come late. */
  stop() {
    this.#ending.abort();
  }

  #queue(model, place, line) {
    const signal = this.#ending.signal;
    line.add(() => (signal.aborted ? undefined : this.#run(model, place, signal)));
  }

  async #run(model, place, signal) {
    const view = this.#views[place];
    const doing = view.querySelector(".doing");
    doing.textContent = "asking";
    let answer;
    try {
      answer = await classify(this.file, model, { signal, onWait: (wait) => (doing.textContent = waitInWords(wait)) });
    } catch (error) {
      if (signal.aborted) return;
      answer = { failure: inWords(error, this.file) };
    }
    if (signal.aborted) return;
    this.answers[place] = answer;
    doing.hidden = true;
    if (answer.failure) this.#showFailure(view, answer.failure);
    else this.#showAnswer(view, answer);
    this.#showAgreement();
    if (this.done) this.#onDone(this);
  }

  #newView(model, place, line) {
    const view = document.getElementById("answer").content.firstElementChild.cloneNode(true);
    view.classList.add("ab"[place]);
    view.querySelector(".who").textContent = model.label;
    view.querySelector("button").addEventListener("click", () => {
      this.answers[place] = null;
      view.querySelector(".failed").hidden = true;
      const doing = view.querySelector(".doing");
      doing.hidden = false;
      doing.textContent = "waiting";
      this.#queue(model, place, line);
    });
    return view;
  }

  #showAnswer(view, { predictions, stages, roundTripMs }) {
    const rows = predictions.map(({ label, score }) => {
      const row = document.createElement("li");
      const name = document.createElement("span");
      const share = document.createElement("span");
      const bar = document.createElement("i");
      name.className = "label";
      name.textContent = name.title = label;
      share.className = "share";
      share.textContent = inPercent(score);
      bar.setAttribute("aria-hidden", "true");
      bar.style.width = `${score * 100}%`;
      row.append(name, share, bar);
      return row;
    });
    view.querySelector(".classes").replaceChildren(...rows);
    showStages(view.querySelector(".stages"), stages, roundTripMs);
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

  #showPicture() {
    const image = this.element.querySelector("img");
    const url = URL.createObjectURL(this.file);
    const over = () => URL.revokeObjectURL(url); // what is drawn stays drawn
    image.onload = over;
    image.onerror = () => {
      over();
      image.remove(); // the server knows formats that this browser does not
    };
    image.src = url;
  }
}
