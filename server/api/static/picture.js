// A photo, drawn small: a browser would keep all of its bytes and pixels for as long as it shows it.

import { Line } from "./line.js";

const SHORT_SIDE_PX = 400;
const LONGEST = 2; // times the short side: more of a panorama is not seen
const line = new Line(2);

/** Show a file in a box; the box says so where this browser does not know the format. */
export function showPicture(file, box) {
  line.add(() => (box.isConnected ? draw(file, box) : undefined));
}

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
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  canvas.width = Math.round(seenWidth * scale);
  canvas.height = Math.round(seenHeight * scale);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  const [left, top] = [(width - seenWidth) / 2, (height - seenHeight) / 2];
  context.drawImage(image, left, top, seenWidth, seenHeight, 0, 0, canvas.width, canvas.height);
  return canvas;
}
