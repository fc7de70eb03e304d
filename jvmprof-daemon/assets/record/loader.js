// Unpacks what the page holds as gzip in base64: its scripts, which run then, and later its data.
"use strict";

(function (nonce) {
  /// The text in the element with this id.
  globalThis.unpackElement = async function (id) {
    const packed = document.getElementById(id).textContent;
    const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };

  globalThis.unpackElement("scripts").then(
    (text) => {
      const script = document.createElement("script");
      script.nonce = nonce;
      script.textContent = text;
      document.body.append(script);
    },
    (error) => {
      const says = `This page can't be unpacked: ${error.message}. Browsers can since 2023.`;
      document.getElementById("app").append(says);
    },
  );
})(document.currentScript.nonce);
