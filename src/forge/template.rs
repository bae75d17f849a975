//! Recognises a model's chat template by its marks.
//!
//! Called by `forge::vocabulary` when a model is read, and by the tool to say what was found. A
//! template is a program; this version runs none, it knows the marks of the usual ones and refuses
//! to guess at others: `ganglion chat --template` lets the user choose.

use crate::image::tokenizer::ChatTemplate;

/// The template that `text` writes, or `None` where its marks are not those of a known one.
pub fn recognise(text: &str) -> Option<ChatTemplate> {
    let has = |mark: &str| text.contains(mark);
    if has("<|im_start|>") {
        // Others write ChatML's marks too, and more between them.
        let others = ["<|im_sep|>", "<end_of_utterance>"];
        let known = has("<|im_end|>") && !others.into_iter().any(has);
        return known.then_some(ChatTemplate::ChatMl);
    }
    if has("<|start_header_id|>") && has("<|end_header_id|>") && has("<|eot_id|>") {
        let dated = has("Cutting Knowledge Date");
        return Some(if dated { ChatTemplate::Llama31 } else { ChatTemplate::Llama3 });
    }
    instructions(text)
}

/// The templates of `[INST]` differ in the spaces around it, and in where the system speaks.
fn instructions(text: &str) -> Option<ChatTemplate> {
    let (before, after) = around(text, "[INST]")?;
    let (before_end, _) = around(text, "[/INST]")?;
    if text.contains("<<SYS>>") {
        let turns_begin = ["bos_token + '[INST] '", "bos_token + \"[INST] \""];
        let known =
            turns_begin.iter().any(|begin| text.contains(begin)) && text.contains(".strip()");
        return known.then_some(ChatTemplate::Llama2);
    }
    let speaks = around(text, "[SYSTEM_PROMPT]").map(|(_, after)| after);
    match (before, after, before_end, speaks) {
        (Edge::Quote, Edge::Space, Edge::Quote, Some(Edge::Space)) => Some(ChatTemplate::MistralV7),
        (Edge::Quote, Edge::Space, Edge::Quote, None) => Some(ChatTemplate::MistralV3),
        (Edge::Space, Edge::Space, Edge::Space, None) => Some(ChatTemplate::MistralV1),
        // The oldest one puts a space behind each answer.
        (Edge::Quote, Edge::Space, Edge::Space, None) if !text.contains("eos_token + ' '") => {
            Some(ChatTemplate::Mistral)
        }
        _ => None,
    }
}

/// What stands beside a mark in a string of the template.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edge {
    /// The string's end.
    Quote,
    Space,
    Other,
}

/// The edges of the first `mark` in `text`.
fn around(text: &str, mark: &str) -> Option<(Edge, Edge)> {
    let at = text.find(mark)?;
    let edge = |sign: Option<char>| match sign {
        Some('\'' | '"') => Edge::Quote,
        Some(' ') => Edge::Space,
        _ => Edge::Other,
    };
    let before = edge(text[..at].chars().next_back());
    Some((before, edge(text[at + mark.len()..].chars().next())))
}

/// What the ChatML template `text` has the system say where the conversation doesn't; empty where
/// it has nothing.
pub fn system_prompt(text: &str) -> String {
    const BEGIN: &str = "<|im_start|>system";
    let words = text.match_indices(BEGIN).find_map(|(at, _)| {
        let quote = text[..at].chars().next_back().filter(|sign| matches!(sign, '\'' | '"'));
        let behind = &text[at + BEGIN.len()..];
        let behind = behind.strip_prefix("\\n").or_else(|| behind.strip_prefix('\n'))?;
        let end = behind.find("<|im_end|>")?;
        literal(&behind[..end], quote)
    });
    words.unwrap_or_default()
}

/// The text that `source` writes within a string that `quote` ends, or as plain text; `None` where
/// it is not all text.
fn literal(source: &str, quote: Option<char>) -> Option<String> {
    let mut text = String::new();
    let mut signs = source.chars();
    while let Some(sign) = signs.next() {
        match (sign, quote) {
            ('\\', Some(_)) => match signs.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                other => text.push(other),
            },
            (sign, Some(quote)) if sign == quote => return None,
            ('{', None) => return None,
            _ => text.push(sign),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_known_by_their_marks() {
        let rows = [
            ("{{ '<|im_start|>' + role + '\\n' + text + '<|im_end|>\\n' }}", Some("chatml")),
            ("{{ '<|im_start|>' + role + '<|im_sep|>' + text + '<|im_end|>' }}", None),
            ("{{ '<|im_start|>' + role }}", None),
            (
                "'<|start_header_id|>' + role + '<|end_header_id|>' + text + '<|eot_id|>'",
                Some("llama-3"),
            ),
            (
                "'<|start_header_id|>system<|end_header_id|>Cutting Knowledge Date: ' '<|eot_id|>'",
                Some("llama-3.1"),
            ),
            ("'<<SYS>>\\n' bos_token + '[INST] ' + text.strip() + ' [/INST]'", Some("llama-2")),
            ("'<<SYS>>\\n' '[INST] ' + text.strip() + ' [/INST]'", None),
            ("bos_token '[INST] ' + text + ' [/INST]' text + eos_token", Some("mistral")),
            ("bos_token '[INST] ' + text + ' [/INST]' text + eos_token + ' '", None),
            ("bos_token ' [INST] ' + text + ' [/INST]' ' ' + text", Some("mistral-v1")),
            ("\"[INST] \" + text + \"[/INST]\" \" \" + text", Some("mistral-v3")),
            ("\"[INST]\" + text + \"[/INST]\"", None),
            ("'[SYSTEM_PROMPT] ' '[INST] ' + text + '[/INST]'", Some("mistral-v7")),
            ("'[SYSTEM_PROMPT]' '[INST]' + text + '[/INST]'", None),
            ("'USER: ' + text + ' ASSISTANT:'", None),
            ("", None),
        ];
        for (text, name) in rows {
            assert_eq!(recognise(text).map(ChatTemplate::name), name, "{text}");
        }
    }

    #[test]
    fn a_system_prompt_is_taken_where_it_is_plain_text() {
        let rows = [
            ("{{ '<|im_start|>system\\nBe \"kind\".<|im_end|>\\n' }}", "Be \"kind\"."),
            ("{{ \"<|im_start|>system\\nDon\\\"t.\\nNo.<|im_end|>\" }}", "Don\"t.\nNo."),
            ("{% if x %}<|im_start|>system\nPlain {text}.<|im_end|>{% endif %}", ""),
            ("{% if x %}<|im_start|>system\nPlain.<|im_end|>{% endif %}", "Plain."),
            ("{{ '<|im_start|>system\\n' + text + '<|im_end|>' }}", ""),
            (
                "{{ '<|im_start|>system\\n' + a + '<|im_end|>' }}\
                 {{ '<|im_start|>system\\nB<|im_end|>' }}",
                "B",
            ),
            ("{{ '<|im_start|>' + role }}", ""),
        ];
        for (text, words) in rows {
            assert_eq!(system_prompt(text), words, "{text}");
        }
    }
}
