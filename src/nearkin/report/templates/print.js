// Paper cannot be clicked, so all details are opened for printing.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((element) => { element.open = true; });
});
addEventListener("afterprint", () => closed.forEach((element) => { element.open = false; }));
