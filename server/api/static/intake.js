// How photos come in: dropped, pasted, chosen, or taken with the camera.

import { find } from "./elements.js";

/** Call `take` with the files of whatever way they came. */
export function openIntake(take) {
  for (const [button, field] of [["choose", "files"], ["camera", "shot"]]) {
    const input = find(field);
    find(button).addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      take([...input.files]);
      input.value = ""; // so that the same file can be chosen again
    });
  }
  // Anywhere on the page: a photo that misses would else replace the page.
  for (const kind of ["dragover", "dragleave", "drop", "paste"]) {
    document.addEventListener(kind, async (event) => {
      const transfer = event.dataTransfer ?? event.clipboardData;
      const hasFiles = transfer?.types.includes("Files") ?? false;
      const stays = kind === "dragover" || (kind === "dragleave" && event.relatedTarget !== null);
      find("drop").classList.toggle("over", hasFiles && stays);
      if (!hasFiles) return;
      event.preventDefault();
      if (kind === "drop" || kind === "paste") take((await Promise.all([...transfer.items].map(filesIn))).flat());
    });
  }
}

/** What is named on purpose is taken as it is; of a folder only what looks like a picture. */
async function filesIn(item) {
  const entry = item.webkitGetAsEntry();
  if (!entry?.isDirectory) return item.getAsFile() ?? [];
  return (await filesOf(entry)).filter(({ type }) => type.startsWith("image/"));
}

async function filesOf(entry) {
  try {
    if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
    const reader = entry.createReader();
    const inside = [];
    for (let some; (some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject))).length; ) {
      inside.push(...some); // a hundred at most come at once
    }
    inside.sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
    return (await Promise.all(inside.map(filesOf))).flat();
  } catch {
    return []; // not for us to read
  }
}
