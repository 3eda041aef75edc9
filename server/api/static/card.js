// A photo and what one model says of it, or two.

import { classify } from "./classify.js";
import { showPicture } from "./picture.js";
import { showStages } from "./stages.js";
import { inBytes, inPercent, inWords, waitInWords } from "./words.js";

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
    showPicture(this.file, this.element.querySelector(".picture"));
  }

  /** Ask anew, from nothing; `line` says when. */
  ask(models, line, order) {
    this.stop();
    this.#ending = new AbortController();
    this.answers = models.map(() => null);
    this.#views = models.map((_, place) => this.#newView(models, place, line));
    this.element.querySelector(".pair").replaceChildren(...this.#views);
    this.element.querySelector(".badge").hidden = true;
    const places = models.map((_, place) => place);
    // Whoever comes second finds the server warm from the first: they take turns.
    for (const place of order % 2 ? places.reverse() : places) this.#queue(models, place, line);
  }

  /** Ask again what may have passed. */
  tryAgain() {
    for (const button of this.element.querySelectorAll(".failed:not([hidden]) button:not([hidden])")) button.click();
  }

  /** Ask no more, and let nothing of it come late. */
  stop() {
    this.#ending.abort();
  }

  #queue(models, place, line) {
    const signal = this.#ending.signal;
    line.add(() => (signal.aborted ? undefined : this.#run(models, place, signal)));
  }

  async #run(models, place, signal) {
    const view = this.#views[place];
    const doing = view.querySelector(".doing");
    doing.textContent = "asking";
    let answer;
    try {
      answer = await classify(this.file, models[place], {
        signal,
        afresh: models.length > 1, // an answer that is kept would be set beside one that is computed
        onWait: (wait) => (doing.textContent = waitInWords(wait)),
      });
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
    if (this.done) this.#onChange(this);
  }

  #newView(models, place, line) {
    const view = document.getElementById("answer").content.firstElementChild.cloneNode(true);
    view.classList.add("ab"[place]);
    view.querySelector(".who").textContent = models[place].label;
    view.tabIndex = -1;
    view.querySelector("button").addEventListener("click", ({ target }) => {
      this.answers[place] = null;
      if (target === document.activeElement) view.focus({ preventScroll: true }); // the button goes
      view.querySelector(".failed").hidden = true;
      const doing = view.querySelector(".doing");
      doing.hidden = false;
      doing.textContent = "waiting";
      this.#queue(models, place, line);
      this.#onChange(this);
    });
    return view;
  }

  #showAnswer(view, answer) {
    const rows = answer.predictions.map(({ label, score }) => {
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
