// Makes elements. Texts become text nodes, whatever they hold: names come from programs that are not trusted.

/**
 * @param {string} tag name, with classes: 'div.card.wide'
 * @param {Object<string, any>|null} [props] attributes; on* are listeners
 * @param {...(Node|string|null|false|undefined|Array)} children
 */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split('.');
  const el = document.createElement(name);
  if (classes.length) el.className = classes.join(' ');
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || (value === false && !key.startsWith('aria-'))) continue;
    if (key.startsWith('aria-'))
      el.setAttribute(key, String(value)); // there false is a value, too
    else if (key.startsWith('on')) el.addEventListener(key.slice(2), value);
    else el.setAttribute(key, value === true ? '' : value);
  }
  el.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

/** @param {Element} el */
export function clear(el) {
  el.replaceChildren();
  return el;
}

/** Copies a text; says so on the button that asked for it. */
export async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'copied';
  } catch {
    button.textContent = 'select and copy by hand';
  }
  setTimeout(() => (button.textContent = before), 1500);
}
