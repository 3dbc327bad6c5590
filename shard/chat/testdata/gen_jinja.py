"""Writes jinja.jsonl: chat templates of our own that use what real ones use, and what Python's Jinja2 makes
of them, set up as transformers does. Run: python3 gen_jinja.py > jinja.jsonl (jinja2 3.1)."""
import json
import random
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SEEDS = 120
USER = [{"role": "user", "content": "Hi there"}]
CHAT = [
    {"role": "system", "content": "  Be brief. \n"},
    {"role": "user", "content": "What's \"2<3\" & why?\n\n  two  "},
    {"role": "assistant", "content": "<think>two is less</think>\n\nTrue."},
    {"role": "user", "content": "你好 {{ not_a_variable }} {% endif %}"},
]
TOOL = [{"role": "user", "content": "a"}, {"role": "tool", "content": "r1"}, {"role": "tool", "content": "r2"}]

TEMPLATES = {
    "header tokens, trimmed": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header|>' + message['role'] + '<|end_header|>\n\n' + message['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header|>assistant<|end_header|>\n\n' }}{% endif %}""",
    "system folded into the first user turn": """{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}
{%- set first = messages[0]['content'] + '\n\n' -%}
{%- set rest = messages[1:] -%}
{%- else -%}
{%- set first = '' -%}
{%- set rest = messages -%}
{%- endif -%}
{%- for m in rest -%}
{%- set role = 'model' if m['role'] == 'assistant' else m['role'] -%}
{{ '<turn>' + role + '\n' + (first if loop.first else '') }}{{ m['content'] | trim }}{{ '<end>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<turn>model\n' }}{%- endif -%}
""",
    "instruction brackets": """{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token }}{% elif m['role'] == 'system' %}{{ '<<SYS>>' ~ m['content'] ~ '<</SYS>>' }}{% endif %}{% endfor %}""",
    "namespace and thinking cut off": """{%- set ns = namespace(last=-1, text='') -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
    {%- set content = m.content -%}
    {%- if m.role == 'assistant' and '</think>' in content and loop.index0 < ns.last -%}
        {%- set content = content.split('</think>')[-1].lstrip('\n') -%}
    {%- endif -%}
    {{- '[' ~ loop.index ~ '/' ~ loop.length ~ '] ' ~ m.role ~ ': ' ~ content ~ '\n' -}}
{%- endfor -%}
last={{ ns.last }}
""",
    "blocks on lines of their own": """{% for m in messages %}
    {% if m.role == 'user' %}
<user>
{{ m.content }}
</user>
    {% else %}
<other role="{{ m.role }}">
{{ m.content }}
</other>
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
<answer>
{% endif %}
""",
    "macro with defaults": """{% macro turn(role, content, end='<end>') %}<{{ role|upper }}>{{ content }}{{ end }}{% endmacro %}{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}{{ turn('x', 'y', end='') }}""",
    "tests and defaults": """{% if tools is not none and tools %}T{% endif %}{% if custom is defined %}C{% else %}c{% endif %}{{ date_string | default('no date') }}{% if not documents %}d{% endif %}{% if messages[-1].role == 'user' %}u{% endif %}{{ messages|length }}{{ messages | map(attribute='role') | join(',') }}""",
    "tool answers grouped": """{% for m in messages %}{% if m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<tools>{% endif %}({{ m.content }}){% if loop.last or messages[loop.index0 + 1].role != 'tool' %}</tools>{% endif %}{% else %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}""",
    "filters and methods": """{% for m in messages %}{{ m.content | replace('\n', ' ') | trim }}|{{ m.content.strip().startswith('W') }}|{{ m.content[:3] }}|{{ m['content'] | length }}|{{ m.role.upper() }}|{{ m.content | tojson }}
{% endfor %}""",
    "comments and white space control": """{# a comment #}
{%- for m in messages %}
    {{- m.role }}
    {#- another -#}
    {{ m.content -}}
    !
{%- endfor %}

end""",
    "loop controls": """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }} {% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}""",
    "arithmetic": """{{ (messages|length + 1) % 2 }} {{ 7 // 2 }} {{ 2 * 3 - 1 }} {{ 'ab' * 2 }} {{ [1, 2] + [3] }} {{ 'a' ~ 1 }} {{ 1 == 1.0 }} {{ not true or false }}""",
    "loop over numbers and cycles": """{% for i in range(3) %}{{ i }}{{ loop.cycle('a', 'b') }}{% if not loop.last %},{% endif %}{% else %}none{% endfor %}{% for i in [] %}x{% else %}empty{% endfor %}""",
}


def white_space(seed):
    """A template that is all tags and white space, to tell the rules for trimming them."""
    r = random.Random(seed)
    sign = lambda: r.choice(["", "", "", "-", "-", "+"])
    gap = lambda: r.choice(["", "", " ", "\n", "\n\n", "  \n  ", "\n\t", "x", " x", "x ", "x\n  ", "\r\n "])

    def block(depth):
        out = gap()
        for _ in range(r.randrange(1, 4)):
            end = lambda kind="%": r.choice(["", "", "-"] + (["+"] if kind != "}" else []))
            what = r.randrange(6)
            if what == 0 or depth == 0:
                out += "{{" + r.choice(["", "-"]) + r.choice([" 'y' ", " '}}' ", " {'a': {'b': 1}}.a.b ", ' "\\u00e9\\\\" ']) + end("}") + "}}"
            elif what == 1:
                out += "{#" + sign() + r.choice([" c ", "{{ x }}", "'"]) + end() + "#}"
            elif what == 2:
                out += "{%" + sign() + " raw " + r.choice(["", "-"]) + "%}" + gap() + r.choice(["{{ z }}", "{% z", ""]) + gap() + "{%" + sign() + " endraw " + end() + "%}"
            elif what == 3:
                out += "{%" + sign() + " set v = 1 " + end() + "%}"
            elif what == 4:
                out += "{%" + sign() + " for i in [1, 2] " + end() + "%}" + block(depth - 1) + "{%" + sign() + " endfor " + end() + "%}"
            else:
                out += "{%" + sign() + " if true " + end() + "%}" + block(depth - 1) + "{%" + sign() + " else " + end() + "%}e{%" + sign() + " endif " + end() + "%}"
            out += gap()
        return out

    return block(2)


def raise_exception(message):
    raise ValueError(message)


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda x, **kw: json.dumps(x, ensure_ascii=False, **kw)
    env.globals["raise_exception"] = raise_exception
    for name, source in TEMPLATES.items():
        for messages in (USER, CHAT, TOOL):
            for add in (True, False):
                text = env.from_string(source).render(messages=messages, add_generation_prompt=add, bos_token="<s>",
                                                      eos_token="</s>", tools=None, documents=None)
                print(json.dumps({"name": name, "template": source, "messages": messages, "add_generation_prompt": add,
                                  "rendered": text}, ensure_ascii=False))
    for seed in range(SEEDS):
        source = white_space(seed)
        print(json.dumps({"name": "white space %d" % seed, "template": source, "messages": USER, "add_generation_prompt": True,
                          "rendered": env.from_string(source).render()}, ensure_ascii=False))


if __name__ == "__main__":
    main()
