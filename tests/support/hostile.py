"""Texts that would run, load or turn something where a page took them for markup."""

from __future__ import annotations

__all__ = ["hostile_texts"]

_RUN = "document.title='ran';document.body.dataset.ran=1;fetch('{url}')"
_TEXTS = (
    "<script>{run}</script>",
    "</script><script>{run}</script>",
    "<SCRIPT SRC={url}></SCRIPT>",
    "<scr<script>ipt>{run}</scr</script>ipt>",
    "<script type=module>import '{url}'</script>",
    "<img src=x onerror=\"{run}\">",
    "<img src={url}>",
    "<img srcset='{url} 2x'>",
    "\"><img src={url}>",
    "'><img src={url}>",
    "\" onmouseover=\"{run}\" x=\"",
    "' onload='{run}' x='",
    "` onfocus=`{run}` autofocus x=`",
    "x style=\"background:url({url})\"",
    "red;background:url({url})",
    "</style><script>{run}</script>",
    "<style>@import '{url}';</style>",
    "<style>body{{background:url({url})}}</style>",
    "expression({run})",
    "<link rel=stylesheet href={url}>",
    "<link rel=prefetch href={url}>",
    "<base href={url}>",
    "<meta http-equiv=refresh content='0;url={url}'>",
    "<meta http-equiv=Content-Security-Policy content='default-src *'>",
    "<iframe src={url}></iframe>",
    "<iframe srcdoc=\"<script>{run}</script>\"></iframe>",
    "<object data={url}></object>",
    "<embed src={url}>",
    "<svg onload=\"{run}\"></svg>",
    "<svg><script href={url}></script></svg>",
    "<svg><use href='{url}#x'/></svg>",
    "<math><mtext></style><img src={url}></mtext></math>",
    "<video src={url} autoplay></video>",
    "<audio autoplay><source src={url}></audio>",
    "<a href=\"javascript:{run}\">click</a>",
    "<form action={url}><input autofocus onfocus=\"{run}\"></form>",
    "<details open ontoggle=\"{run}\"></details>",
    "<body onload=\"{run}\">",
    "</body></html><script>{run}</script>",
    "</div></article></p></span></mark></small></b>",
    "</title><script>{run}</script>",
    "</textarea><script>{run}</script>",
    "<!-- --><script>{run}</script>",
    "--><script>{run}</script><!--",
    "<![CDATA[<script>{run}</script>]]>",
    "<?xml version='1.0'?><script>{run}</script>",
    "<!DOCTYPE html><html><head><script>{run}</script>",
    "<template><script>{run}</script></template>",
    "<noscript><img src={url}></noscript>",
    "&lt;script&gt;{run}&lt;/script&gt;",
    "&#60;script&#62;{run}&#60;/script&#62;",
    "&quot; onclick=&quot;{run}",
    "{{{{constructor.constructor('{run}')()}}}}",
    "${{{run}}}",
    "\x00<script>{run}</script>\x00",
    "<\x00script>{run}</script>",
    "a\ud800b<script>{run}</script>\udfff",
    "\u202e>tpircs/<{run}>tpircs<",
    "\u2066<b\u2069 \u061c\u200b\ufeff\u2028\u2029 \x1b[31m\x1b]0;ran\x07\x08\x7f",
    "שלום <b>עולם</b> " + "wide\u200dword" * 400,
)  # fmt: skip


def hostile_texts(url: str = "http://127.0.0.1:9/x") -> list[str]:
    """Sixty different texts; what they would fetch is at the address."""
    run = _RUN.format(url=url)
    return [text.format(run=run, url=url) for text in _TEXTS]
