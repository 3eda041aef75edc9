// The API key: asked for once the server answers 401, kept for this tab, never part of an address.

const PLACE = "milkweed-key";
// A proxy may keep several servers on one origin: each page has its own.
const place = `${PLACE} ${new URL(".", document.baseURI).pathname}`;

let asking = null;

/** The key that requests carry now; null where none was needed yet. */
export function keyInUse() {
  return sessionStorage.getItem(place);
}

/** Wait for another key than the one that was refused. */
export function newKey(refused, signal) {
  if (keyInUse() !== refused) return Promise.resolve(); // it came while this request was on its way
  asking ??= askForIt(refused).finally(() => (asking = null));
  if (!signal) return asking;
  return Promise.race([
    asking,
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true })),
  ]);
}

function askForIt(refused) {
  const form = document.getElementById("key");
  const field = document.getElementById("key-text");
  const failure = document.getElementById("key-error");
  form.hidden = false;
  failure.textContent = refused ? "This server does not know that key." : "";
  field.value = "";
  field.focus();
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      const key = field.value.trim();
      if (!/^[\x21-\x7e]+$/.test(key)) {
        failure.textContent = "A key has letters, digits and signs, and no spaces.";
        return;
      }
      sessionStorage.setItem(place, key);
      field.value = "";
      form.hidden = true;
      document.getElementById("choose").focus();
      resolve();
    };
  });
}
