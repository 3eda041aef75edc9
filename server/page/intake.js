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
    take([...event.dataTransfer.files]);
  });
}
