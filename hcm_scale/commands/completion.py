"""A script that has a shell complete the words of hcm-scale: `hcm-scale completion bash|zsh|fish`.

bash    eval "$(hcm-scale completion bash)"            in ~/.bashrc
zsh     eval "$(hcm-scale completion zsh)"             in ~/.zshrc, after compinit
fish    hcm-scale completion fish | source             in ~/.config/fish/config.fish
"""

from hcm_scale.commands.arguments import parser
from hcm_scale.completing import SHELLS

BASH = r"""_hcm_scale() {
    local line="${COMP_LINE:0:COMP_POINT}" word kept="" found
    local -a typed
    read -r -a typed <<< "$line"
    [[ "$line" == *[[:space:]] ]] && typed+=("")
    word="${typed[${#typed[@]}-1]}"
    [[ "$COMP_WORDBREAKS" == *=* ]] && kept="${word%"${word##*=}"}"  # bash completes what is after the =
    COMPREPLY=()
    while IFS= read -r found; do
        COMPREPLY+=("${found#"$kept"}")
    done < <("${typed[0]}" --complete "${typed[@]:1}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=.] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _hcm_scale hcm-scale"""
ZSH = r"""_hcm_scale() {
    local -a found begun whole
    found=(${(f)"$("${words[1]}" --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#found} )); then
        begun=(${(M)found:#*[=.]}) whole=(${found:#*[=.]})  # after a key or a section no space
        (( ${#begun} )) && compadd -S '' -a begun
        (( ${#whole} )) && compadd -a whole
    else
        compset -P '*='
        _files
    fi
}
compdef _hcm_scale hcm-scale"""
FISH = r"""function __hcm_scale_next
    set -l typed (commandline -opc)
    set -l word (commandline -ct)
    set -e typed[1]
    set -l found (hcm-scale --complete $typed "$word" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        set -l key (string match -r '^.*=' -- $word)
        __fish_complete_path (string replace -r '^.*=' '' -- $word) | string replace -r '^' -- "$key"
    end
end
complete -c hcm-scale -f -a '(__hcm_scale_next)'"""


def main(arguments: list[str]) -> str:
    """The script."""
    words = parser("completion", __doc__)
    words.add_argument("shell", choices=SHELLS)
    return dict(zip(SHELLS, (BASH, ZSH, FISH), strict=True))[words.parse_args(arguments).shell]
