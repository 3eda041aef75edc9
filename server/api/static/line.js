// A line of jobs, of which so many run at once.

export class Line {
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
