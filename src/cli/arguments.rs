//! Arguments without a heap: one table of flags, each parsed where it stands.

use super::argument_error::ArgumentError;
use crate::image::tokenizer::ChatTemplate;
use crate::kernel::Isa;
use crate::sys::start;
use crate::token::SamplerConfig;
use core::str::FromStr;

/// Tokens that count as recent where no flag says so.
const REPEAT_LAST: u32 = 64;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Continue a prompt.
    Run,
    /// Talk with the model.
    Chat,
    /// Measure.
    Bench,
    /// Print the plan.
    Plan,
    /// Verify the image.
    Check,
    /// List the commands.
    Help,
    /// Print the version.
    Version,
}

/// How to do it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Text to continue, or the first message of a chat.
    pub prompt: Option<&'static [u8]>,
    /// Tokens of a prompt that is made, not given.
    pub prompt_tokens: Option<u32>,
    /// What the system says in a chat.
    pub system: Option<&'static str>,
    /// How a chat is written as text.
    pub template: Option<ChatTemplate>,
    /// The image.
    pub image: &'static [u8],
    /// Most new tokens of a text or an answer.
    pub tokens: Option<u32>,
    /// Compute threads, at most the plan's.
    pub threads: Option<u32>,
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// How tokens are drawn.
    pub sampler: SamplerConfig,
    /// Print JSON.
    pub json: bool,
    /// Go on where the model would end its text.
    pub ignore_end: bool,
    /// Kill the process where it asks for memory after the seal.
    pub prove_seal: bool,
    /// Stop where the process uses more than its budget.
    pub enforce_budget: bool,
    /// Print help instead.
    pub help: bool,
}

/// Reads the command line. `image` is the image's place where no flag gives one.
pub fn parse(
    arguments: &[&'static [u8]],
    image: &'static str,
) -> Result<(Command, Options), ArgumentError> {
    let mut options = Options {
        prompt: None,
        prompt_tokens: None,
        system: None,
        template: None,
        image: image.as_bytes(),
        tokens: None,
        threads: None,
        isa: default_isa()?,
        sampler: SamplerConfig { repeat_last: REPEAT_LAST, ..SamplerConfig::GREEDY },
        json: false,
        ignore_end: false,
        prove_seal: false,
        enforce_budget: false,
        help: false,
    };
    let Some((&first, rest)) = arguments.split_first() else {
        return Ok((Command::Help, options));
    };
    let command = command(first)?;
    let mut cursor = Cursor { rest, value: None, literal: false };
    while let Some(argument) = cursor.next() {
        flag(argument, &mut cursor, &mut options)?;
    }
    if command != Command::Chat {
        let chats =
            [("--system", options.system.is_some()), ("--template", options.template.is_some())];
        if let Some((flag, _)) = chats.into_iter().find(|(_, given)| *given) {
            return Err(ArgumentError::OnlyChat { flag });
        }
    }
    if let (Some(found), Some(_)) = (options.prompt, options.prompt_tokens) {
        return Err(ArgumentError::PromptOfBothKinds { found });
    }
    Ok((command, options))
}

fn command(name: &'static [u8]) -> Result<Command, ArgumentError> {
    match name {
        b"run" => Ok(Command::Run),
        b"chat" => Ok(Command::Chat),
        b"bench" => Ok(Command::Bench),
        b"plan" => Ok(Command::Plan),
        b"check" => Ok(Command::Check),
        b"help" | b"--help" | b"-h" => Ok(Command::Help),
        b"--version" | b"-V" => Ok(Command::Version),
        _ => Err(ArgumentError::UnknownCommand { found: name }),
    }
}

/// The best instruction set, or the one that GANGLION_ISA forces.
fn default_isa() -> Result<Isa, ArgumentError> {
    match start::variable(c"GANGLION_ISA") {
        None => Ok(Isa::best()),
        Some(name) => isa(name),
    }
}

fn isa(name: &'static [u8]) -> Result<Isa, ArgumentError> {
    let known = core::str::from_utf8(name).ok().and_then(Isa::parse);
    known.filter(|isa| isa.available()).ok_or(ArgumentError::UnknownIsa { found: name })
}

fn template(name: &'static [u8]) -> Result<ChatTemplate, ArgumentError> {
    ChatTemplate::parse(name).ok_or(ArgumentError::UnknownTemplate { found: name })
}

struct Cursor<'a> {
    rest: &'a [&'static [u8]],
    /// Behind "=" of the argument just read.
    value: Option<&'static [u8]>,
    /// After "--": no more flags.
    literal: bool,
}

enum Argument {
    Flag(&'static [u8]),
    Text(&'static [u8]),
}

impl Cursor<'_> {
    fn next(&mut self) -> Option<Argument> {
        let (&argument, rest) = self.rest.split_first()?;
        self.rest = rest;
        if self.literal || !argument.starts_with(b"-") || argument == b"-" {
            return Some(Argument::Text(argument));
        }
        if argument == b"--" {
            self.literal = true;
            return self.next();
        }
        let equals = argument.iter().position(|&byte| byte == b'=');
        self.value = equals.map(|at| &argument[at + 1..]);
        Some(Argument::Flag(&argument[..equals.unwrap_or(argument.len())]))
    }

    fn value(&mut self, flag: &'static [u8]) -> Result<&'static [u8], ArgumentError> {
        if let Some(value) = self.value.take() {
            return Ok(value);
        }
        let (&value, rest) = self.rest.split_first().ok_or(ArgumentError::NoValue { flag })?;
        self.rest = rest;
        Ok(value)
    }

    fn text(&mut self, flag: &'static [u8]) -> Result<&'static str, ArgumentError> {
        let found = self.value(flag)?;
        let wanted = "text in UTF-8";
        core::str::from_utf8(found).map_err(|_| ArgumentError::BadValue { flag, found, wanted })
    }

    fn number<T: FromStr>(
        &mut self,
        flag: &'static [u8],
        wanted: &'static str,
    ) -> Result<T, ArgumentError> {
        let found = self.value(flag)?;
        let number = core::str::from_utf8(found).ok().and_then(|text| text.parse().ok());
        number.ok_or(ArgumentError::BadValue { flag, found, wanted })
    }
}

fn flag(
    argument: Argument,
    cursor: &mut Cursor<'_>,
    options: &mut Options,
) -> Result<(), ArgumentError> {
    let flag = match argument {
        Argument::Flag(flag) => flag,
        Argument::Text(text) => {
            return match options.prompt.replace(text) {
                None => Ok(()),
                Some(_) => Err(ArgumentError::TwoPrompts { second: text }),
            };
        }
    };
    let sampler = &mut options.sampler;
    match flag {
        b"--help" | b"-h" => options.help = true,
        b"--json" => options.json = true,
        b"--ignore-end" => options.ignore_end = true,
        b"--prove-seal" => options.prove_seal = true,
        b"--system" => options.system = Some(cursor.text(flag)?),
        b"--template" => options.template = Some(template(cursor.value(flag)?)?),
        b"--image" => options.image = cursor.value(flag)?,
        b"--isa" => options.isa = isa(cursor.value(flag)?)?,
        b"--tokens" | b"-n" => options.tokens = Some(cursor.number(flag, "a count")?),
        b"--threads" | b"-t" => options.threads = Some(cursor.number(flag, "a count")?),
        b"--prompt-tokens" => options.prompt_tokens = Some(cursor.number(flag, "a count")?),
        b"--seed" | b"-s" => sampler.seed = cursor.number(flag, "a whole number")?,
        b"--temp" => sampler.temperature = cursor.number(flag, "a number of 0 or more")?,
        b"--top-k" => sampler.top_k = cursor.number(flag, "a count")?,
        b"--top-p" => sampler.top_p = cursor.number(flag, "a number from 0 to 1")?,
        b"--min-p" => sampler.min_p = cursor.number(flag, "a number from 0 to 1")?,
        b"--repeat-penalty" => {
            sampler.repeat_penalty = cursor.number(flag, "a positive number")?;
        }
        b"--repeat-last" => sampler.repeat_last = cursor.number(flag, "a count")?,
        _ => return Err(ArgumentError::UnknownFlag { found: flag }),
    }
    if cursor.value.is_some() {
        return Err(ArgumentError::UnwantedValue { flag });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&'static str]) -> Result<(Command, Options), ArgumentError> {
        let bytes: Vec<&'static [u8]> = arguments.iter().map(|text| text.as_bytes()).collect();
        parse(&bytes, "default.image")
    }

    #[test]
    fn flags_take_their_values_both_ways() {
        let (command, options) =
            parsed(&["run", "-n", "5", "--temp=0.5", "--image", "x", "--", "-p"]).unwrap();
        assert_eq!(command, Command::Run);
        assert_eq!((options.tokens, options.sampler.temperature), (Some(5), 0.5));
        assert_eq!((options.image, options.prompt), (&b"x"[..], Some(&b"-p"[..])));
        assert_eq!(parsed(&["plan", "--json"]).unwrap().0, Command::Plan);
        let (command, options) =
            parsed(&["chat", "--template=mistral-v3", "--system", "", "Hi"]).unwrap();
        assert_eq!(command, Command::Chat);
        assert_eq!(
            (options.template, options.system, options.prompt),
            (Some(ChatTemplate::MistralV3), Some(""), Some(&b"Hi"[..]))
        );
        assert_eq!(parsed(&[]).unwrap().0, Command::Help);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |arguments: &[&'static str]| parsed(arguments).unwrap_err().to_string();
        assert!(said(&["sing"]).contains("\"sing\""));
        assert!(said(&["run", "--tmp", "1"]).contains("\"--tmp\""));
        assert!(said(&["run", "-n"]).contains("-n needs a value"));
        assert!(said(&["run", "-n", "x"]).contains("a count"));
        assert!(said(&["run", "--json=1"]).contains("--json takes no value"));
        assert!(said(&["run", "a", "b"]).contains("\"b\""));
        let both = said(&["bench", "--prompt-tokens", "9", "a"]);
        assert!(both.contains("--prompt-tokens makes") && both.contains("\"a\""), "{both}");
        assert!(said(&["run", "--isa", "sse9"]).contains("\"sse9\""));
        let unknown = said(&["chat", "--template", "vicuna"]);
        assert!(unknown.contains("\"vicuna\"") && unknown.contains("chatml"), "{unknown}");
        assert!(said(&["run", "--system", "x"]).contains("--system belongs to `ganglion chat`"));
    }
}
