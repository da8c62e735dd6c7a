"""`headrace completion SHELL`: completion scripts for bash, zsh and fish.

The scripts call `headrace completion words WORD ...`, which prints the candidates for the last word
from the parser of the command. Without candidates, the shell completes file names.
"""

import argparse
from collections.abc import Iterable, Sequence

_BASH = """\
_headrace() {
    local IFS=$'\\n'
    COMPREPLY=($(headrace completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _headrace headrace
"""
_ZSH = """\
#compdef headrace
_headrace() {
    local -a found
    found=(${(f)"$(headrace completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -- $found; else _files; fi
}
compdef _headrace headrace
"""
_FISH = """\
function __headrace
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (headrace completion words $words[2..-1] "$current" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c headrace -f -a '(__headrace)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_HELP = """\
bash: add to ~/.bashrc:  eval "$(headrace completion bash)"
zsh:  add to ~/.zshrc:   eval "$(headrace completion zsh)"   (after compinit)
fish: run once:          headrace completion fish > ~/.config/fish/completions/headrace.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _HELP
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "shell",
        choices=(*SCRIPTS, "words"),
        metavar="{bash,zsh,fish}",
        help="shell to print the script for",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.shell in SCRIPTS:
        print(SCRIPTS[args.shell], end="")
    else:
        for candidate in candidates(args.words):
            print(candidate)
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """The completions of the last of the words after `headrace`."""
    from headrace.cli.main import COMMANDS, command_parser

    *before, current = words or [""]
    if not before:
        return _starting(current, (*COMMANDS, "--help", "--version"))
    if before[0] not in COMMANDS:
        return []
    parser = command_parser(before[0])
    option: argparse.Action | None = None
    for word in before[1:]:
        if option is not None:
            option = None
        elif word in parser._option_string_actions:
            action = parser._option_string_actions[word]
            option = None if action.nargs == 0 else action
        else:
            parser = _subparsers(parser).get(word, parser)
    if option is not None:
        return _starting(current, map(str, option.choices or ()))
    if current.startswith("-"):
        return _starting(current, parser._option_string_actions)
    choices = [
        str(choice)
        for action in parser._actions
        if not action.option_strings
        for choice in action.choices or ()
    ]
    return _starting(current, choices)


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _starting(current: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(current))
