const work = document.getElementById("work");
if (work) {
  const pattern = (name) => document.getElementById(name).content.firstElementChild.cloneNode(true);
  const put = (element, value) => {
    if (element.tagName === "PROGRESS") {
      if (value === null) element.removeAttribute("value");
      else element.value = value;
    } else if (element.dataset.a) {
      element.setAttribute(element.dataset.a, value);
    } else {
      if (element.textContent !== value) element.textContent = value;
      element.hidden = value === "";
    }
  };
  const filled = (name, item) => {
    const made = pattern(name);
    const values = typeof item === "string" ? { text: item } : item;
    for (const element of [made, ...made.querySelectorAll("[data-g]")]) {
      if (element.dataset.g) put(element, values[element.dataset.g]);
    }
    return made;
  };
  const shown = new WeakMap();
  const show = (element, run) => {
    for (const part of element.querySelectorAll("[data-f]")) {
      const value = run[part.dataset.f];
      if (!part.dataset.each) {
        put(part, value);
      } else if (shown.get(part) !== JSON.stringify(value)) {
        shown.set(part, JSON.stringify(value));
        part.replaceChildren(...value.map((item) => filled(part.dataset.each, item)));
        part.hidden = value.length === 0;
      }
    }
    element.querySelector(".state").className = `state ${run.state}`;
  };
  const count = (number) => {
    const summary = document.getElementById("summary");
    const bold = document.createElement("b");
    bold.textContent = number;
    if (number) summary.replaceChildren(bold, " running.");
    else summary.replaceChildren("Nothing is running.");
  };
  const follow = async () => {
    const pulse = document.getElementById("pulse");
    try {
      const answer = await fetch("/work.json", { cache: "no-store" });
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.error);
      const known = new Map([...work.children].map((element) => [element.dataset.id, element]));
      told.runs.forEach((run, place) => {
        const element = known.get(run.id) || pattern("run");
        if (!known.delete(run.id)) {
          element.dataset.id = run.id;
          element.open = run.state === "running";
        }
        show(element, run);
        if (work.children[place] !== element) work.insertBefore(element, work.children[place] || null);
      });
      for (const gone of known.values()) gone.remove();
      document.getElementById("idle").hidden = told.runs.length > 0;
      count(told.running);
      if (pulse.textContent) pulse.textContent = "";
    } catch (error) {
      const words = "The server does not answer just now; this page tries again by itself.";
      if (pulse.textContent !== words) pulse.textContent = words;
    }
  };
  const again = async () => {
    if (!document.hidden) await follow();
    setTimeout(again, 1000);
  };
  setTimeout(again, 1000);
  document.addEventListener("visibilitychange", () => document.hidden || follow());
}
