//! What a body says that routing goes by.

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use smg_decide::retry::MAX_RESEND_BYTES;
use smg_wire::form::Form;
use smg_wire::json::compact;
use smg_wire::json::splice::{self, Edit};
use smg_wire::json::{Bad, Fields};
use smg_wire::route::{Carries, Inference};

use crate::body::Bounds;

/// A body that was read.
pub(super) struct Said<'a> {
    /// The fields of a JSON object; none of a form.
    pub(super) fields: Fields<'a>,
    form: Option<Form>,
}

impl<'a> Said<'a> {
    /// Reads a body of this route.
    pub(super) fn read(
        body: &'a [u8],
        inference: &Inference,
        headers: &HeaderMap,
    ) -> Result<Self, Bad> {
        match inference.carries {
            Carries::Json => {
                let fields = Fields::read(body, inference.required)?;
                Ok(Self { fields, form: None })
            }
            Carries::Form => {
                let form = Form::read(headers.get(CONTENT_TYPE), body)?;
                Ok(Self { fields: Fields::default(), form: Some(form) })
            }
            Carries::ResponseId => Ok(Self { fields: Fields::default(), form: None }),
        }
    }

    /// The model it names, if it does.
    pub(super) fn model(&self) -> Result<Option<Cow<'a, str>>, Bad> {
        match &self.form {
            Some(form) => Ok(form.model.clone().map(Cow::Owned)),
            None => self.fields.model(),
        }
    }

    /// Whether it asks for a stream.
    pub(super) fn stream(&self) -> bool {
        self.form.as_ref().map_or_else(|| self.fields.stream(), |form| form.stream)
    }

    /// The body as a worker is to see it: with the model that an alias stands for, and without what a
    /// client put between tokens to please the eye.
    pub(super) fn outgoing(&self, body: &Bytes, model: Option<&str>, bounds: &Bounds) -> Bytes {
        let renamed = model.and_then(|model| self.renamed(body, model));
        // A large body is not held twice for that.
        let small = self.form.is_none() && body.len() < MAX_RESEND_BYTES;
        let compact = small.then(|| compact::compact(renamed.as_deref().unwrap_or(body))).flatten();
        compact.or(renamed).map_or_else(|| body.clone(), |anew| bounds.rewritten(anew))
    }

    fn renamed(&self, body: &Bytes, model: &str) -> Option<Vec<u8>> {
        let edit = Edit { name: "model", value: &splice::quoted(model) };
        match &self.form {
            Some(form) => form.renamed(body, model),
            None => splice::set(body, &[edit]),
        }
    }
}
