// Reads off a page what a person sees of it: where cards and blocks are, and which texts are cut or outside of the window.
function () {
  const box = (e) => {
    const r = e.getBoundingClientRect();
    return { X: r.x + scrollX, Y: r.y + scrollY, W: r.width, H: r.height };
  };
  const visible = (e) => e.checkVisibility() && !e.closest("caption, .hidden");
  const label = (e, heading) => e.querySelector(`:scope > ${heading}:not(.hidden)`)?.textContent ?? "";
  const cards = [...document.querySelectorAll(".card")].filter(visible).map((card) => ({
    Name: card.querySelector("h6").textContent,
    State: card.querySelector(".state").textContent,
    Root: label(card.closest(".root"), "h5"),
    Domain: label(card.closest(".domain"), "h4"),
    Boxes: [card, card.closest(".root"), card.closest(".domain"), card.closest(".node")].map(box),
    Bar: box(card.querySelector(".bar")),
    Blocks: [...card.querySelectorAll(".bar td")].map((td) => ({ Text: td.textContent, Mark: td.className, Box: box(td) })),
    Sorts: [...card.querySelectorAll(".sorts tbody tr")].filter(visible).length,
  }));
  const texts = [];
  const cut = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.data.trim() || !visible(node.parentElement)) {
      continue;
    }
    let block = node.parentElement;
    while (getComputedStyle(block).display === "inline") {
      block = block.parentElement;
    }
    const outer = block.getBoundingClientRect();
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const r of range.getClientRects()) {
      if (r.width === 0) {
        continue;
      }
      const out = r.left < -1 || r.right > document.documentElement.clientWidth + 1;
      if (out || r.left < outer.left - 1 || r.right > outer.right + 1 || r.top < outer.top - 3 || r.bottom > outer.bottom + 3) {
        cut.push(node.data.trim());
      }
      texts.push({ Text: node.data.trim(), Box: { X: r.x + scrollX, Y: r.y + scrollY, W: r.width, H: r.height } });
    }
  }
  return {
    Width: document.documentElement.clientWidth,
    Needs: document.documentElement.scrollWidth,
    Height: document.documentElement.scrollHeight,
    Cards: cards, Texts: texts, Cut: cut,
  };
}
