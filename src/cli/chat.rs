//! `chat`: a conversation that stays in the cache, turn by turn.
//!
//! A message becomes a turn of the model's template, and only this turn is given to the model: the
//! tokens before it, its own answers among them, have their keys and values in the cache.
//! Invariant: an answer is what the whole conversation, given at once, would be continued with.

use super::argument_error::ArgumentError;
use super::arguments::Options;
use super::boot::{Session, boot};
use super::entry::{Entry, Reader};
use super::fault::Fault;
use super::generate::{Limits, Measured, Stop, decode, prefill};
use super::prompt_error::PromptError;
use super::run::{boot_options, print, prompt};
use super::{help, json, summary};
use crate::image::tokenizer::ChatTemplate;
use crate::plan::Plan;
use crate::sys::{Output, Stderr, catch_every_stop_signal, forget_interrupt, path_text};
use crate::token::{EncodeScratch, Place, Sampler, TokenError, Utf8Stream, write_turn};
use core::fmt::Write;

/// Talks until the input ends.
pub fn chat(plan: &Plan, options: &Options) -> Result<(), Fault> {
    let message = prompt(options)?;
    let sampler = Sampler::new(options.sampler)?;
    catch_every_stop_signal().map_err(Fault::Input)?;
    boot(plan, &boot_options(plan, options)?, |session| {
        session.shows_progress = true;
        let template = options.template.or(session.tokenizer.chat_template());
        let template = template.ok_or(ArgumentError::NoTemplate)?;
        let stored = Some(session.tokenizer.system_prompt()).filter(|text| !text.is_empty());
        let reader = Reader::new();
        let mut chat = Chat {
            is_interactive: reader.is_terminal() && !options.json,
            plan,
            options,
            template,
            system: options.system.or(stored),
            session,
            sampler,
            out: Output::stdout(),
            turns: 0,
            last: None,
        };
        chat.greet();
        chat.talk(message, reader)
    })
}

struct Chat<'c, 'a> {
    plan: &'c Plan,
    options: &'c Options,
    template: ChatTemplate,
    /// What the system says, if it says something.
    system: Option<&'c str>,
    session: &'c mut Session<'a>,
    sampler: Sampler,
    out: Output,
    /// Whether somebody types and reads.
    is_interactive: bool,
    turns: u64,
    /// Figures of the last answer.
    last: Option<Measured>,
}

impl Chat<'_, '_> {
    fn greet(&self) {
        if !self.session.tokenizer.knows(self.template) {
            Stderr::line(format_args!(
                "ganglion: the vocabulary has no token for the end of a turn in template {}: the \
                 model may not end its answers; --tokens N bounds them",
                self.template.name()
            ));
        }
        if self.is_interactive {
            Stderr::line(format_args!(
                "{}, template {}, {} tokens of context; /help lists the commands",
                self.plan.inputs.model,
                self.template.name(),
                self.session.tokens.len()
            ));
        }
    }

    /// Answers `message`, if there is one, and then what is entered.
    fn talk(&mut self, message: &str, mut reader: Reader) -> Result<(), Fault> {
        let mut entry = self.put(message);
        loop {
            match entry {
                Entry::Message(bytes) => self.answer(bytes)?,
                Entry::Cut => self.refuse(PromptError::Cut.into())?,
                Entry::Reset => self.reset(),
                Entry::Stats => self.stats()?,
                Entry::Help => help::chat_commands(),
                Entry::Unknown(bytes) => self.refuse_command(bytes),
                Entry::Cancelled => forget_interrupt(),
                Entry::Leave => return Ok(()),
            }
            entry = reader.entry(self.session.model.turn().0)?;
        }
    }

    /// Puts `message` where an entry lies; too long, it is an entry that is too long.
    fn put(&mut self, message: &str) -> Entry {
        let (memory, _) = self.session.model.turn();
        let kept = message.len().min(memory.len());
        memory[..kept].copy_from_slice(&message.as_bytes()[..kept]);
        Entry::Message(message.len())
    }

    /// Answers the message of `bytes` bytes that was entered, or says why not; a blank one is none.
    fn answer(&mut self, bytes: usize) -> Result<(), Fault> {
        match self.take(bytes) {
            Ok(0) => Ok(()),
            Ok(tokens) => self.speak(tokens),
            Err(fault) => self.refuse(fault),
        }
    }

    /// Makes a turn of the message and puts its tokens behind the conversation's; how many. In
    /// JSON, says what was entered. Unless all goes well the conversation is as before.
    fn take(&mut self, bytes: usize) -> Result<usize, Fault> {
        let (used, context) = (self.session.cached, self.session.tokens.len());
        let (memory, scratch) = self.session.model.turn();
        let max = memory.len();
        let too_long = |bytes| PromptError::TooMuchText { bytes, max };
        let message = memory.get(..bytes).ok_or(too_long(bytes))?;
        let message = core::str::from_utf8(message)
            .map_err(|error| PromptError::NotUtf8 { at: error.valid_up_to() })?;
        if message.trim().is_empty() {
            return Ok(0);
        }
        let place = match used {
            0 => Place::First { system: self.system },
            _ => Place::Next,
        };
        let turn = write_turn(self.template, place, memory, bytes).map_err(too_long)?;
        let mut scratch = EncodeScratch::new(scratch);
        // One place is kept for the answer.
        let room = self.session.tokens[..context - 1].get_mut(used..).unwrap_or_default();
        let tokens = self.session.tokenizer.encode_turn(&turn, &mut scratch, room);
        let tokens = tokens.map_err(|error| match error {
            TokenError::TooManyTokens { total: tokens, .. } if used == 0 => {
                PromptError::TooLong { tokens, context }.into()
            }
            TokenError::TooManyTokens { total: tokens, max: room } => {
                PromptError::ContextFull { tokens, room, context }.into()
            }
            error => Fault::Token(error),
        })?;
        if self.options.json {
            self.out.push(b"{\"prompt\":");
            json::string(&turn.text[turn.said[1].clone()], &mut self.out);
        }
        Ok(tokens)
    }

    /// Gives the model the `tokens` tokens of a turn and writes its answer.
    fn speak(&mut self, tokens: usize) -> Result<(), Fault> {
        let Chat { session, sampler, options, out, .. } = self;
        let (start, end) = (session.cached, session.cached + tokens);
        let limits =
            Limits { tokens: options.tokens.unwrap_or(u32::MAX), ignore_end: options.ignore_end };
        if options.json {
            out.push(b",\"text\":\"");
        }
        let mut stream = Utf8Stream::new();
        let mut measured = prefill(session, end)?;
        decode(session, end, sampler, limits, &mut measured, |bytes| {
            stream.push(bytes, |text| print(options, text, out));
            out.flush().map_err(Fault::Output)
        })?;
        stream.finish(|text| print(options, text, out));
        // Whoever sees the answer's end may press Ctrl-C again, and means the chat then.
        forget_interrupt();
        let is_taken = measured.stop != Stop::Signal || measured.tokens > 0;
        if is_taken {
            self.turns += 1;
            self.trim_answer(end);
        } else {
            session.cached = start;
        }
        self.tell(&measured, is_taken)?;
        self.last = Some(measured);
        Ok(())
    }

    /// Takes white space at the end of the answer, which began at `start`, out of the conversation
    /// where the template has none there.
    fn trim_answer(&mut self, start: usize) {
        let Session { tokens, tokenizer, cached, .. } = &mut *self.session;
        let is_blank = |&token: &u32| {
            let text = tokenizer.token_bytes(token);
            !text.is_empty() && text.trim_ascii().is_empty()
        };
        if self.template.trims_answers() {
            let answer = &tokens[start..*cached];
            *cached -= answer.iter().rev().take_while(|token| is_blank(token)).count();
        }
    }

    /// What follows the answer: the end of its line, and why it ended if that was not the model's
    /// own doing; in JSON the figures.
    fn tell(&mut self, measured: &Measured, is_taken: bool) -> Result<(), Fault> {
        if self.options.json {
            let out = &mut self.out;
            write!(out, "\",\"turn\":{},\"context_tokens\":{},", self.turns, self.session.cached)
                .and_then(|()| summary::json_fields(self.plan, self.session, measured, out))
                .expect("an output takes any text");
            out.push(b"}");
        }
        self.out.push(b"\n");
        self.out.flush().map_err(Fault::Output)?;
        let context = self.session.tokens.len();
        match measured.stop {
            Stop::Context if !self.options.json => Stderr::line(format_args!(
                "ganglion: the answer ends where the context of {context} tokens is full; /reset \
                 begins a new conversation"
            )),
            Stop::Signal if !is_taken && !self.options.json => Stderr::line(format_args!(
                "ganglion: stopped before the answer began; the message is not part of the \
                 conversation"
            )),
            _ => {}
        }
        Ok(())
    }

    /// A message that can't be answered: who types may try another, a program that reads JSON finds
    /// the reason in the turn's place; for any other input the rest would make no sense.
    fn refuse(&mut self, fault: Fault) -> Result<(), Fault> {
        if self.options.json {
            let out = &mut self.out;
            out.push(b"{\"error\":\"");
            write!(Escaped(out), "{fault}").expect("an output takes any text");
            out.push(b"\"}\n");
            return self.out.flush().map_err(Fault::Output);
        }
        if self.is_interactive {
            Stderr::line(format_args!("ganglion: {fault}"));
            return Ok(());
        }
        Err(fault)
    }

    fn refuse_command(&mut self, bytes: usize) {
        let (memory, _) = self.session.model.turn();
        Stderr::line(format_args!(
            "ganglion: there is no command {:?}; /help lists them, and a space before it makes it \
             a message",
            path_text(&memory[..bytes])
        ));
    }

    /// Begins a new conversation.
    fn reset(&mut self) {
        self.session.cached = 0;
        self.turns = 0;
        self.last = None;
        self.sampler = Sampler::new(*self.sampler.config()).expect("the settings are as before");
    }

    fn stats(&mut self) -> Result<(), Fault> {
        let (used, context) = (self.session.cached, self.session.tokens.len());
        if self.options.json {
            writeln!(
                self.out,
                "{{\"turns\":{},\"context_tokens\":{used},\"context_tokens_max\":{context}}}",
                self.turns
            )
            .expect("an output takes any text");
            return self.out.flush().map_err(Fault::Output);
        }
        Stderr::line(format_args!("[turns {}, context {used} of {context} tokens]", self.turns));
        if let Some(last) = &self.last {
            summary::line(self.plan, last);
        }
        Ok(())
    }
}

/// Text on its way into a JSON string.
struct Escaped<'o>(&'o mut Output);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        json::escape(text, self.0);
        Ok(())
    }
}
