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
    const copy = pattern(name);
    const values = typeof item === "string" ? { text: item } : item;
    for (const element of [copy, ...copy.querySelectorAll("[data-g]")]) {
      if (element.dataset.g) put(element, values[element.dataset.g]);
    }
    return copy;
  };
  const shown = new WeakMap();
  const show = (element, run) => {
    for (const field of element.querySelectorAll("[data-f]")) {
      const value = run[field.dataset.f];
      if (!field.dataset.each) {
        put(field, value);
      } else if (shown.get(field) !== JSON.stringify(value)) {
        shown.set(field, JSON.stringify(value));
        field.replaceChildren(...value.map((item) => filled(field.dataset.each, item)));
        field.hidden = value.length === 0;
      }
    }
    element.querySelector(".state").className = `state ${run.state}`;
  };
  const list = (parent, items) => {
    const known = new Map([...parent.children].map((element) => [element.dataset.id, element]));
    items.forEach((item, index) => {
      const element = known.get(item.id) || pattern(parent.dataset.each);
      if (!known.delete(item.id)) {
        element.dataset.id = item.id;
        element.open = item.state === "running";
      }
      show(element, item);
      if (parent.children[index] !== element) parent.insertBefore(element, parent.children[index] || null);
    });
    for (const gone of known.values()) gone.remove();
  };
  const count = (number) => {
    const summary = document.getElementById("summary");
    const bold = document.createElement("b");
    bold.textContent = number;
    if (number) summary.replaceChildren(bold, " running.");
    else summary.replaceChildren("No command is running.");
  };
  const follow = async () => {
    const pulse = document.getElementById("pulse");
    try {
      const answer = await fetch("/work.json", { cache: "no-store" });
      const facts = await answer.json();
      if (!answer.ok) throw new Error(facts.error);
      list(work, facts.runs);
      list(document.getElementById("jobs"), facts.jobs);
      const idle = document.getElementById("idle");
      if (idle) {
        idle.hidden = facts.runs.length > 0;
        document.getElementById("jobs-section").hidden = !facts.jobs.length && !facts.unread;
      }
      put(document.getElementById("unread"), facts.unread);
      put(document.getElementById("queue"), facts.queue || (facts.unread ? "" : "The queue is empty."));
      count(facts.running);
      if (pulse.textContent) pulse.textContent = "";
    } catch (error) {
      const words = "The server does not answer; this page tries again every second.";
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
