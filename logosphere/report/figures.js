"use strict";
// Saving plots as files, and marks at the edges of tables that are wider than the page.
(() => {
  const style = JSON.parse(document.getElementById("figure-style").textContent);

  // A plot as a file of its own, with its style and background inside.
  function draw(svg) {
    const copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    const part = (name, attributes) => {
      const made = document.createElementNS(svg.namespaceURI, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };
    const sheet = part("style", {});
    sheet.textContent = style;
    copy.setAttribute("width", width); copy.setAttribute("height", height);
    copy.prepend(sheet, part("rect", { class: "sheet", width: "100%", height: "100%" }));
    return { text: new XMLSerializer().serializeToString(copy), width, height };
  }

  function save(blob, name) {
    const link = document.createElement("a"), address = URL.createObjectURL(blob);
    link.href = address; link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  document.addEventListener("click", event => {
    const button = event.target.closest("[data-save]");
    if (!button) return;
    const svg = button.closest("figure").querySelector(".drawing svg"), { text, width, height } = draw(svg);
    const name = svg.getAttribute("aria-label").replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "").toLowerCase();
    if (button.dataset.save === "svg") return save(new Blob([text], { type: "image/svg+xml" }), `${name}.svg`);
    const image = new Image(), canvas = document.createElement("canvas");
    canvas.width = 2 * width; canvas.height = 2 * height;
    image.addEventListener("load", () => {
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(blob => save(blob, `${name}.png`), "image/png");
    });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });

  for (const wide of document.querySelectorAll(".wide")) {
    const table = wide.firstElementChild;
    const mark = () => {
      wide.classList.toggle("more-left", table.scrollLeft > 1);
      wide.classList.toggle("more-right", table.scrollLeft + table.clientWidth < table.scrollWidth - 1);
    };
    table.addEventListener("scroll", mark, { passive: true });
    new ResizeObserver(mark).observe(table);
  }
})();
