// How photos come in: dropped, pasted, chosen, or taken with the camera.

/** Call `take` with the files of whatever way they came. */
export function openIntake(take) {
  const drop = document.getElementById("drop");
  for (const [button, field] of [["choose", "files"], ["camera", "shot"]]) {
    const input = document.getElementById(field);
    document.getElementById(button).addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      take([...input.files]);
      input.value = ""; // so that the same file can be chosen again
    });
  }
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) {
      event.preventDefault();
      take(files);
    }
  });
  // Anywhere on the page: a photo that misses would else replace the page.
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    drop.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    drop.classList.remove("over");
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
    if (entries.some(({ isDirectory }) => isDirectory)) takeFolders(entries, take);
    else take([...event.dataTransfer.files]);
  });
}

/** What is named on purpose is taken as it is; of a folder only what looks like a picture. */
async function takeFolders(entries, take) {
  const found = await Promise.all(
    entries.map(async (entry) => {
      const files = await filesOf(entry);
      return entry.isFile ? files : files.filter(({ type }) => type.startsWith("image/"));
    }),
  );
  take(found.flat());
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
